"""Scripted play with advice: training data for the household actor."""
