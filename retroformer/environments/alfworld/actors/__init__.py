"""Actors that play ALFWorld."""
