"""Making a model smaller, and proving how good it still is: what must run a model, or write one."""
