"""Client certificates: requesting them, knowing when they must be replaced, and keeping the kubeconfig that holds them.

The only room that imports cryptography.
"""
