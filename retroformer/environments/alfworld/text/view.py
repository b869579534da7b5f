"""Compact view of a failure: what the attempt showed of its room, in a quarter of the tokens."""

from retroformer.environments.alfworld.text.digest import digest
from retroformer.records import Memory, Message, Trajectory


def compact_reflection_prompt(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """Return an ALFWorld attempt as a digest: a quarter of the tokens, for small models on small machines."""
    summary = digest(failure.task, failure.opening, failure.steps)
    advice = " ".join(" ".join(memory.reflections).split())
    tried = f"Advice: {advice}\n" if advice else ""
    return (
        Message(role="system", content="You advise a household robot."),
        Message(role="user", content=f"{summary}{tried}Failed. Advice for the next attempt:"),
    )
