"""Text environments, one per folder; `registry` finds each by its name."""
