"""Best-of-n: answer a request with the best of several candidates, as scored by a reward model.

The candidates, and then the scoring requests, go through the engine beside all other requests.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .engine import Engine, Request
from .generation import Output, TextGeneration
from .latest import Latest
from .model import Model
from .scoring import Scoring


class Target(NamedTuple):
    """The models behind a served name."""

    adapter: str
    """The engine's name of the adapter that writes."""
    answers: int = 1
    """Number of candidates to choose from."""
    reward: str = ""
    """The engine's name of the reward model that chooses; empty without a choice."""
    silent: bool = False
    """True if the answer is an empty text, as no adapter is promoted; nothing is computed."""


async def write_best(engine: Engine, model: Model, candidates: Sequence[TextGeneration], reward: str) -> Output:
    """Write all candidates, score each distinct text with the adapter `reward`, and return the best output.

    Ties go to the first candidate. The output counts the tokens of all candidates. If any request fails, its failure
    is returned.
    """
    outputs = await asyncio.gather(*(_finished(engine, candidate) for candidate in candidates))
    # Stripped, like the reflections that the reward model was trained on.
    texts = [candidate.transcript.text(final=True).strip() for candidate in candidates]
    scorings = {text: Scoring([*candidates[0].prompt, *model.turn(text)], reward) for text in texts}
    scored = [] if len(scorings) == 1 else await asyncio.gather(*(_finished(engine, s) for s in scorings.values()))
    if failed := next((output for output in (*outputs, *scored) if output.failure), None):
        return failed
    best = max(range(len(texts)), key=lambda index: scorings[texts[index]].score)
    return replace(outputs[best], completion_tokens=sum(output.completion_tokens for output in outputs))


async def _finished(engine: Engine, request: Request) -> Output:
    """Return the output of a request that does not stream. If the caller stops waiting, the row is freed."""
    outputs = Latest[Output](asyncio.get_running_loop())
    request.deliver = outputs.put
    engine.submit(request)
    try:
        return await outputs.get()
    finally:
        request.cancelled = True
