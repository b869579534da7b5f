"""Attempts that other programs recorded: formats that read them, and their grouping into cases."""
