"""A run: what was done once stays done. The store, the work that is left, metrics and provenance."""
