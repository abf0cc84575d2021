"""One module or package for each controller; none knows another."""
