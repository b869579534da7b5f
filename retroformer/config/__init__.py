"""The experiment config and the parts built from it."""
