"""Rounds of collecting, training and validating, each with the better reflector."""
