"""What a reconcile of an object with an operation has in common: its type, its errors, the objects that extensions work on."""
