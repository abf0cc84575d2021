"""Tokens of the garden for components of the seed: of ServiceAccounts, and of workload identities."""
