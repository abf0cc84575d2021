"""Chaos: what must survive, on real machines and in virtual time."""
