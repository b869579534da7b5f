"""The reflector's prompt of `reflector.view: compact`."""

import re
from collections.abc import Sequence

from retroformer.environments.alfworld.attempt_reader import read_steps, view_of
from retroformer.environments.alfworld.compact import listed, read_opening, type_of
from retroformer.method.records import Lesson, Memory, Message, Trajectory


def digest(attempt: Trajectory, earlier: Sequence[Lesson] = ()) -> str:
    """Return what the attempts have shown, for small models, which count badly.

        Task: put a clean mug in countertop
        Seen: mug 2 in countertop 1
        Searched: microwave 1, countertop 1, drawer 1
        Not searched: drawer 2-4, sinkbasin 1, cabinet 1-3

    Of the things that they showed, it names those that the task names, with the place where they lay at first. The
    lines `Searched` and `Not searched` are omitted where they name no place.
    """
    sentence, view = read_opening(attempt.opening).task, view_of(attempt, earlier)
    names = set(re.findall(r"\w+", sentence.lower()))
    seen = [f"{thing} in {place}" for thing, place in view.room.first_seen.items() if type_of(thing) in names]
    lines = {
        "Task": sentence,
        "Seen": ", ".join(seen) or "none",
        "Searched": listed(list(view.room.contents)),
        "Not searched": listed(view.unsearched),
    }
    return "".join(f"{name}: {content}\n" for name, content in lines.items() if content)


def compact_reflection_prompt(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """Return ALFWorld attempts as one digest: a quarter of the tokens, for small models on small machines.

    If earlier attempts are known, each piece of advice is followed by the places that were searched with it.
    """
    if memory.earlier:
        advice = [" ".join(lesson.advice.split()) or "none" for lesson in memory.earlier]
        retries = (*(lesson.attempt for lesson in memory.earlier[1:]), failure)
        searched = [listed(list(read_steps(retry.steps).contents)) for retry in retries]
        pairs = zip(advice, searched, strict=True)
        history = "".join(f"Advice: {text}\nSearched then: {places or 'nothing'}\n" for text, places in pairs)
    else:
        text = " ".join(" ".join(memory.reflections).split())
        history = f"Advice: {text}\n" if text else ""
    return (
        Message(role="system", content="You advise a household robot."),
        Message(role="user", content=f"{digest(failure, memory.earlier)}{history}Failed. Advice for the next attempt:"),
    )
