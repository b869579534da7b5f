"""Retroformer: train a small open model to write advice that improves the next attempt of a frozen language agent."""
