"""Phrases that sound like advice but have no content."""

from random import Random

from retroformer.records import Task

PHRASES = (
    "Be careful and think step by step.",
    "Try harder next time.",
    "Make a better plan.",
    "Do not waste steps.",
    "Read the task again.",
    "I failed because I ran out of steps.",
    "I was not able to complete the task.",
    "The task was not completed in time.",
    "Next time I will be faster.",
    "You should be more efficient.",
)
"""Advice without content."""


def seeded(task: Task, seed: int) -> Random:
    """Return a random generator that depends on the task and the seed alone."""
    return Random(f"{seed}/{task.split}/{task.id}")
