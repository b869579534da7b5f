"""Rates, intervals and counts computed from the stored facts."""
