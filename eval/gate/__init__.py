"""Decides which adapter is served as `reflector`: by a sequential paired test, and by live outcomes."""
