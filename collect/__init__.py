"""Stage 1. Plays tasks with the frozen actor and rates reflections; writes trajectories and reflections to the store."""
