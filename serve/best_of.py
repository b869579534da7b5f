"""Best-of-n: a request that is answered by the best of several answers, as a reward model scores them.

The answers and then the readings by the reward model go through the engine like all other requests, beside them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from serve.engine import Engine, Request
from serve.generation import Generation, Output
from serve.latest import Latest
from serve.model import Model
from serve.scoring import Scoring


class Target(NamedTuple):
    """What answers to a name."""

    adapter: str
    """The engine's name of what writes."""
    answers: int = 1
    """To choose from."""
    reward: str = ""
    """The engine's name of the reward model that chooses; empty where there is no choice."""


async def write_best(engine: Engine, model: Model, candidates: Sequence[Generation], reward: str) -> Output:
    """Let the engine write all candidates, and read each different text by the adapter `reward`; the best one's output.

    The first of equals is taken. The output counts the tokens of all candidates; a failure of any is that of all.
    """
    outputs = await asyncio.gather(*(_finished(engine, one) for one in candidates))
    # Without space around it, as the reward model has read the reflections that it was trained on.
    texts = [one.transcript.text(final=True).strip() for one in candidates]
    readings = {text: Scoring([*candidates[0].prompt, *model.turn(text)], reward) for text in texts}
    read = [] if len(readings) == 1 else await asyncio.gather(*(_finished(engine, one) for one in readings.values()))
    if failed := next((output for output in (*outputs, *read) if output.failure), None):
        return failed
    best = max(range(len(texts)), key=lambda index: readings[texts[index]].score)
    return replace(outputs[best], completion_tokens=sum(output.completion_tokens for output in outputs))


async def _finished(engine: Engine, request: Request) -> Output:
    """What a request that does not stream delivers. When nobody waits for it any more, its row is freed."""
    outputs = Latest[Output](asyncio.get_running_loop())
    request.deliver = outputs.put
    engine.submit(request)
    try:
        return await outputs.get()
    finally:
        request.cancelled = True
