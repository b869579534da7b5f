"""Answers to requests: their prompts in tokens, a generation for each answer or candidate, and the outputs."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import torch

from .engine.engine import Engine
from .engine.generation import DecodedText, Output, Request, Scoring, TextGeneration
from .engine.model import Model
from .engine.sampling import Choices, SamplingParameters
from .models import ServedModels, Target
from .requests import Chat, GenerationRequest, Prompt, RequestError

ANSWERS_AT_ONCE = 1024
"""Answers in progress or waiting at once: `loop.concurrency` of an experiment is at most this."""
STUCK_SECONDS = 900.0
"""Duration after which a forward pass counts as stuck: prompts are read in chunks of at most 2,048 tokens."""
_SEEDS = 1 << 63


class Answers:
    """Answers requests with the served models."""

    def __init__(self, model: Model, engine: Engine, served: ServedModels) -> None:
        self._model, self._engine = model, engine
        self.served = served
        self._reserved = 0

    @property
    def load(self) -> int:
        """Number of texts in progress."""
        return self._engine.load

    @property
    def healthy(self) -> bool:
        """True if requests can finish: the engine's thread lives and no pass is stuck."""
        return self._engine.alive and self._engine.pass_seconds < STUCK_SECONDS

    @property
    def context_tokens(self) -> int:
        """Largest number of tokens of a prompt with its answer."""
        return self._model.context_tokens

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[dict[int, Output], None]:
        """Yield the latest outputs of a request by the number of the answer, until all answers are finished.

        Each has the whole text so far. A best-of request yields once. If the caller stops iterating, the rows of the
        request are freed. Raises RequestError if the request cannot be answered, or an answer has failed.
        """
        target = self.served.targets.get(request.model)
        if target is None:
            raise RequestError(404, f"No model {request.model!a} is served here.", "model")
        with self._reserve(request.answers):
            if target.silent:
                yield {number: Output(finish_reason="stop") for number in range(request.answers)}
                return
            candidates = await asyncio.to_thread(self._candidates, request, target)
            if len(candidates[0]) > 1:
                best = await asyncio.gather(
                    *(write_best(self._engine, self._model, each, target.reward) for each in candidates)
                )
                yield dict(enumerate(best))
                return
            async with contextlib.aclosing(_outputs(self._engine, [only for (only,) in candidates])) as outputs:
                async for latest in outputs:
                    yield latest

    async def finished(self, request: GenerationRequest) -> list[Output]:
        """Return the last output of each answer. Raises RequestError, as `stream` does."""
        return await _last(self.stream(request))

    def render(self, chat: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt that the model's chat template makes of a chat. May raise anything."""
        return self._model.render(chat)

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """Return a prompt in tokens.

        Raises RequestError if it is empty or too long, has a token outside the vocabulary, which would fail every row
        of its pass, or is a chat that the model's chat template refuses.
        """
        if isinstance(prompt, Chat):
            try:
                prompt = self.render([message.model_dump() for message in prompt.messages])
            except Exception as error:  # Chat templates are third-party programs and may raise anything.
                raise RequestError(400, f"The model's chat template refuses this: {error}.", "messages") from error
        if isinstance(prompt, str):
            is_far_too_long = len(prompt) > self._model.longest_text
            tokens = [] if is_far_too_long else self._model.encode(prompt)
            count = f"more than {self.context_tokens}" if is_far_too_long else str(len(tokens))
        else:
            tokens, count = prompt, str(len(prompt))
            if not 0 <= min(tokens) <= max(tokens) < self._model.vocabulary:
                raise RequestError(400, f"Tokens of a prompt are 0 to {self._model.vocabulary - 1}.", "prompt")
        if count == "0":
            raise RequestError(400, "The prompt has no tokens, and at least one is needed.", "prompt")
        if not 0 < len(tokens) < self.context_tokens:
            raise RequestError(
                400,
                f"This model's maximum context length is {self.context_tokens} tokens. However, your messages resulted "
                f"in {count} tokens. Please reduce the length of the messages.",
            )
        return tokens

    @contextlib.contextmanager
    def _reserve(self, answers: int) -> Iterator[None]:
        if self._reserved + answers > ANSWERS_AT_ONCE:
            raise RequestError(429, f"{self._reserved} answers are being written, and the limit is {ANSWERS_AT_ONCE}.")
        self._reserved += answers
        try:
            yield
        finally:
            self._reserved -= answers

    def _candidates(self, request: GenerationRequest, target: Target) -> list[list[TextGeneration]]:
        """Return for each answer its generation, or several to choose from. Raises RequestError."""
        sampling = SamplingParameters(
            request.temperature, request.top_p, request.top_k, request.frequency_penalty, request.presence_penalty
        )
        # With greedy sampling all candidates would be the same.
        count = 1 if sampling.greedy else target.answers
        ends = {min(self._model.stop_tokens)} if request.choices else set[int]()
        ends = ends.union(request.stop_token_ids, () if request.ignore_eos else self._model.stop_tokens)
        candidates = []
        for prompt in request.prompts:
            tokens = self.tokens_of(prompt)
            limit = min(request.max_tokens or self.context_tokens, self.context_tokens - len(tokens))
            choices = self._choices(request, limit)
            for number in range(request.n):
                answers = [
                    TextGeneration(
                        prompt=tokens,
                        adapter=target.adapter,
                        limit=limit,
                        sampling=sampling,
                        stop_tokens=frozenset(ends),
                        transcript=DecodedText(self._model.decode, [text for text in request.stop if text]),
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
        sequences = {text: self._model.encode(text) for text in request.choices}
        text, longest = max(sequences.items(), key=lambda pair: len(pair[1]))
        if len(longest) > limit:
            message = f"The choice {text[:100]!a} has {len(longest)} tokens, and {limit} may be written."
            raise RequestError(400, message, "choices")
        return Choices([*sequence, min(self._model.stop_tokens)] for sequence in sequences.values())


async def write_best(engine: Engine, model: Model, candidates: Sequence[TextGeneration], reward: str) -> Output:
    """Write all candidates, score each distinct text with the adapter `reward`, and return the best output.

    Ties go to the first candidate. The output counts the tokens of all candidates. Raises RequestError if one fails.
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

    If the caller stops iterating, their rows are freed. Raises RequestError if one has failed.
    """
    latest = Latest()
    for number, request in enumerate(requests):
        request.deliver = partial(latest.put, number)
        engine.submit(request)
    unfinished = set(range(len(requests)))
    try:
        while unfinished:
            outputs = await latest.get()
            if failure := next((output.failure for output in outputs.values() if output.failure), ""):
                raise RequestError(500, failure)
            unfinished -= {number for number, output in outputs.items() if output.finish_reason}
            yield outputs
    finally:
        for request in requests:
            request.cancelled = True


class Latest:
    """The last output of each of several requests, put in from any thread and fetched in the event loop that made it.

    A new output replaces one that was not fetched. Each holds the whole text so far, so a queue of outputs for a slow
    client would grow with the square of the text.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._outputs: dict[int, Output] = {}

    def put(self, number: int, output: Output) -> None:
        """Keep the output of request `number`. Callable from any thread."""
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

    def derived(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % _SEEDS

    own = secrets.randbelow(_SEEDS) if seed is None else seed % _SEEDS
    if seed is not None and number:
        own = derived(f"answer {own} {number}")
    return [own, *(derived(f"{own} {index}") for index in range(1, count))]
