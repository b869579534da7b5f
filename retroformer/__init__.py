"""Retroformer: train a small open model to give a frozen language agent advice that makes its next attempt better."""
