"""The kinds of arms that every environment has: one class each, with its reflector."""
