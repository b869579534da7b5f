"""Compact view of a failure: what the attempts have shown of their room, in a quarter of the tokens."""

from retroformer.environments.alfworld.text.digest import digest, searched
from retroformer.records import Memory, Message, Trajectory


def compact_reflection_prompt(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """Return ALFWorld attempts as one digest: a quarter of the tokens, for small models on small machines.

    If earlier attempts are known, each piece of advice is followed by the places that were searched with it.
    """
    attempts = [lesson.attempt for lesson in memory.earlier]
    summary = digest(failure, attempts)
    if attempts:
        advice = [" ".join(lesson.advice.split()) or "none" for lesson in memory.earlier]
        retries = zip(advice, (*attempts[1:], failure), strict=True)
        tried = "".join(f"Advice: {text}\nSearched then: {searched(retry) or 'nothing'}\n" for text, retry in retries)
    else:
        text = " ".join(" ".join(memory.reflections).split())
        tried = f"Advice: {text}\n" if text else ""
    return (
        Message(role="system", content="You advise a household robot."),
        Message(role="user", content=f"{summary}{tried}Failed. Advice for the next attempt:"),
    )
