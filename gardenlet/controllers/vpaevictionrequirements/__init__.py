"""When vertical pod autoscalers may evict pods to make them smaller."""
