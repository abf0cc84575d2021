"""Steps that run once, one after the other, before the controllers."""
