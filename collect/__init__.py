"""Stage 1. Plays tasks with the frozen actor, rates reflections; writes both to the store."""
