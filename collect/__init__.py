"""Stage 1. Plays tasks with the frozen actor and rates reflections; writes both to the store."""
