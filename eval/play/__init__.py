"""Runs the arms on held-out tasks."""
