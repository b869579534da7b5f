"""Soft actor-critic on the actor itself: the baseline of the paper without a reflector."""
