"""Readers and rule-based writers of advice for ALFWorld."""
