"""Advice for an agent inside the program that runs it; `retroformer.Reflector` is its public face."""
