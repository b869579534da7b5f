"""Actors, reflectors and evaluators that work in every environment."""
