"""Client certificates: requesting them, knowing when they must be replaced, and keeping the kubeconfig that holds them.

The only room that imports cryptography.
"""

from importlib import import_module

from agents.core.imports import left_out, replaced

# Keys of ssh are a third of a MB.
with replaced(left_out("cryptography.hazmat.primitives.serialization.ssh")):
    import_module("cryptography.hazmat.primitives.serialization")
