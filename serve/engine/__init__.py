"""Continuous batching of one base model with many adapters."""
