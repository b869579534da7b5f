"""Answers to requests: a generation for each answer, or several candidates to choose from, and their outputs."""

import asyncio
import contextlib
import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import torch

from retroformer.endpoint.request_guard import Refusal

from .adapters import ServedModels, Target
from .engine.chat_tokenizer import ChatTokenizer
from .engine.engine import Engine
from .engine.generation import DecodedText, Output, Request, Scoring, TextGeneration
from .engine.model import Model
from .engine.sampling import Choices, SamplingParameters
from .requests import GenerationRequest, prompt_tokens

ANSWERS_AT_ONCE = 1024
"""Answers in progress or waiting at once: `loop.concurrency` of an experiment is at most this."""
STUCK_SECONDS = 900.0
"""Duration after which a forward pass counts as stuck: prompts are read in chunks of at most 2,048 tokens."""
_SEEDS = 1 << 63


class Answers(ABC):
    """Answers requests with the served models."""

    def __init__(self, model: ChatTokenizer, served: ServedModels) -> None:
        self.model, self.served = model, served
        self._reserved = 0

    @property
    def load(self) -> int:
        """Number of texts in progress."""
        return self._reserved

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """True if requests can finish."""

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[dict[int, Output], None]:
        """Yield the latest outputs of a request by the number of the answer, until all answers are finished.

        Each has the whole text so far. A best-of request yields once. If the caller stops iterating, the rows of the
        request are freed. Raises Refusal if the request cannot be answered, or an answer has failed.
        """
        target = self.served.targets.get(request.model)
        if target is None:
            raise Refusal(404, f"No model {request.model!a} is served here.", "model")
        if target.silent:
            yield {number: Output(finish_reason="stop") for number in range(request.answers)}
            return
        if self._reserved + request.answers > ANSWERS_AT_ONCE:
            raise Refusal(429, f"{self._reserved} answers are being written, and the limit is {ANSWERS_AT_ONCE}.")
        self._reserved += request.answers
        try:
            async with contextlib.aclosing(self._generate(request, target)) as outputs:
                async for latest in outputs:
                    yield latest
        finally:
            self._reserved -= request.answers

    async def write(self, request: GenerationRequest) -> list[Output]:
        """Return the last output of each answer. Raises Refusal, as `stream` does."""
        return await _last(self.stream(request))

    @abstractmethod
    def _generate(self, request: GenerationRequest, target: Target) -> AsyncGenerator[dict[int, Output], None]:
        """Write the texts of a request with these models, and yield outputs as `stream` does."""

    def _limit(self, request: GenerationRequest, prompt: Sequence[int]) -> int:
        """Return the largest number of tokens that may follow this prompt."""
        return min(request.max_tokens or self.model.context_tokens, self.model.context_tokens - len(prompt))

    def _ends(self, request: GenerationRequest) -> set[int]:
        """Return the tokens that end a text of this request."""
        return {*request.stop_token_ids, *(() if request.ignore_eos else self.model.stop_tokens)}


class EngineAnswers(Answers):
    """Answers requests with the engine of this process."""

    model: Model

    def __init__(self, model: Model, engine: Engine, served: ServedModels) -> None:
        super().__init__(model, served)
        self._engine = engine

    @property
    def load(self) -> int:
        return self._engine.load

    @property
    def healthy(self) -> bool:
        """True if the engine's thread lives and no pass is stuck."""
        return self._engine.alive and self._engine.pass_seconds < STUCK_SECONDS

    async def _generate(self, request: GenerationRequest, target: Target) -> AsyncGenerator[dict[int, Output], None]:
        candidates = await asyncio.to_thread(self._candidates, request, target)
        if len(candidates[0]) > 1:
            best = [write_best(self._engine, self.model, candidate, target.reward) for candidate in candidates]
            yield dict(enumerate(await asyncio.gather(*best)))
            return
        async with contextlib.aclosing(_outputs(self._engine, [only for (only,) in candidates])) as outputs:
            async for latest in outputs:
                yield latest

    def _candidates(self, request: GenerationRequest, target: Target) -> list[list[TextGeneration]]:
        """Return for each answer its generation, or several to choose from. Raises Refusal."""
        sampling = SamplingParameters(
            request.temperature, request.top_p, request.top_k, request.frequency_penalty, request.presence_penalty
        )
        # With greedy sampling all candidates would be the same.
        count = 1 if sampling.greedy else target.answers
        ends = self._ends(request) | ({self.model.stop_tokens[0]} if request.choices else set())
        candidates = []
        for prompt in request.prompts:
            tokens = prompt_tokens(self.model, prompt)
            limit = self._limit(request, tokens)
            choices = self._choices(request, limit)
            for number in range(request.n):
                answers = [
                    TextGeneration(
                        prompt=tokens,
                        adapter=target.adapter,
                        limit=limit,
                        sampling=sampling,
                        stop_tokens=frozenset(ends),
                        transcript=DecodedText(self.model.decode, [text for text in request.stop if text]),
                        generator=torch.Generator().manual_seed(seed),
                        choices=copy(choices),
                        streaming=request.stream and target.answers == 1,
                        in_tokens=request.with_tokens,
                    )
                    for seed in seeds(request.seed, number, count)
                ]
                candidates.append(answers)
        return candidates

    def _choices(self, request: GenerationRequest, limit: int) -> Choices | None:
        """Return the texts that an answer must be one of, in tokens with the end; None allows any answer."""
        if request.choices is None:
            return None
        sequences = {text: self.model.encode_content(text) for text in request.choices}
        text, longest = max(sequences.items(), key=lambda pair: len(pair[1]))
        if len(longest) > limit:
            message = f"The choice {text[:100]!a} has {len(longest)} tokens, and {limit} may be written."
            raise Refusal(400, message, "choices")
        return Choices([*sequence, self.model.stop_tokens[0]] for sequence in sequences.values())


async def write_best(engine: Engine, model: Model, candidates: Sequence[TextGeneration], reward: str) -> Output:
    """Write all candidates, score each distinct text with the adapter `reward`, and return the best output.

    Ties go to the first candidate. The output counts the tokens of all candidates. Raises Refusal if one fails.
    """
    outputs = await _last(_outputs(engine, candidates))
    # Stripped, like the reflections that the reward model was trained on.
    texts = [candidate.transcript.text(final=True).strip() for candidate in candidates]
    scorings = {text: Scoring([*candidates[0].prompt, *model.turn(text)], reward) for text in texts}
    if len(scorings) > 1:
        await _last(_outputs(engine, [*scorings.values()]))
    best = max(range(len(texts)), key=lambda index: scorings[texts[index]].score)
    return replace(outputs[best], completion_tokens=sum(output.completion_tokens for output in outputs))


async def _last(stream: AsyncGenerator[dict[int, Output], None]) -> list[Output]:
    """Return the last output of each request, in their order."""
    last = dict[int, Output]()
    async with contextlib.aclosing(stream) as outputs:
        async for latest in outputs:
            last |= latest
    return [last[number] for number in range(len(last))]


async def _outputs(engine: Engine, requests: Sequence[Request]) -> AsyncGenerator[dict[int, Output], None]:
    """Submit requests, and yield their latest outputs by index until all are finished.

    If the caller stops iterating, their rows are freed. Raises Refusal if one has failed.
    """
    latest = LatestOutputs()
    for number, request in enumerate(requests):
        request.deliver = partial(latest.put, number)
        engine.submit(request)
    unfinished = set(range(len(requests)))
    try:
        while unfinished:
            outputs = await latest.get()
            if failure := next((output.failure for output in outputs.values() if output.failure), ""):
                raise Refusal(500, failure)
            unfinished -= {number for number, output in outputs.items() if output.finish_reason}
            yield outputs
    finally:
        for request in requests:
            request.cancelled = True


class LatestOutputs:
    """The last output of each of several requests, put in from any thread and fetched in the event loop that made it.

    A new output replaces one that was not fetched: each holds the whole text so far.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._outputs: dict[int, Output] = {}

    def put(self, number: int, output: Output) -> None:
        self._loop.call_soon_threadsafe(self._keep, number, output)

    async def get(self) -> dict[int, Output]:
        """Wait until there are outputs that were not fetched yet, and return them."""
        await self._changed.wait()
        self._changed.clear()
        outputs, self._outputs = self._outputs, {}
        return outputs

    def _keep(self, number: int, output: Output) -> None:
        self._outputs[number] = output
        self._changed.set()


def seeds(seed: int | None, number: int, count: int) -> list[int]:
    """Return the sampling seeds of the candidates for answer `number` to a prompt; random ones without a `seed`.

    The first is that of a single answer: a single answer is among any number of candidates.
    """
    first = secrets.randbelow(_SEEDS) if seed is None else seed % _SEEDS
    if seed is not None and number:
        first = _derived_seed(f"answer {first} {number}")
    return [first, *(_derived_seed(f"{first} {index}") for index in range(1, count))]


def _derived_seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % _SEEDS
