"""Sections of the experiment config: every key with its bounds and description."""
