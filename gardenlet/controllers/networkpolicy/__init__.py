"""The network policies that every namespace of a seed gets."""
