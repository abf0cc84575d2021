"""The machine's host name, as the Node's label carries it. Source: gardener pkg/nodeagent/hostname.go."""

import os


def read_hostname() -> str:
    """Return the kernel's host name in lower case."""
    return os.uname().nodename.lower()
