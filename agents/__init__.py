"""Shared rooms of both agents: core, kube, runtime, pki."""
