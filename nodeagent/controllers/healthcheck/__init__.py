"""Health of containerd and the kubelet: what fails for a minute is restarted, if that can help."""
