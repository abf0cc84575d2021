"""From a bootstrap kubeconfig to a certificate of our own, and what has to be cleaned up afterwards (contract core 3)."""
