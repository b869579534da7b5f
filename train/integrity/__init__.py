"""Keeps damaged files and numbers that are not finite out of training."""
