"""How well something is: conditions, and the checks that they come from."""
