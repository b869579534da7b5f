"""Requests to the engine: a text to write, with the conditions that finish it, or a score of a reward model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from .prefixes import BlockNames
from .sampling import Choices, SamplingParameters, Step

UNFINISHED_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class Output:
    """Result of a request so far, or the reason for its failure."""

    text: str = ""
    finish_reason: str | None = None
    """`stop` or `length` on the last output, None before."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: str = ""
    """Error message of the engine; empty on success."""
    tokens: tuple[int, ...] = ()
    """All tokens written, including the one that ended the request; only on the last output, and only if requested."""
    log_probs: tuple[float, ...] = ()
    """Log-probability of each of these tokens under the model itself: temperature 1, no top-k or top-p."""


class DecodedText:
    """Text of the tokens so far, decoded piecewise, so that the cost per token does not grow with the text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._tokens: list[int] = []
        self._context = self._decoded = 0
        self._text = ""
        self.stopped = False

    def append(self, token: int) -> None:
        """Add a token. If a stop string has appeared, cut the text before it and set `stopped`."""
        self._tokens.append(token)
        self._decode_new(final=False)

    def finish(self) -> None:
        """Decode the remaining tokens, even an unfinished character: no token will follow."""
        if not self.stopped:
            self._decode_new(final=True)

    def _decode_new(self, final: bool) -> None:
        # A token decoded without those before it would lose its leading space or part of a character.
        before = self._decode(self._tokens[self._context : self._decoded])
        after = self._decode(self._tokens[self._context :])
        if not final and (after.endswith(UNFINISHED_CHARACTER) or len(after) <= len(before)):
            return
        old_length = len(self._text)
        self._text += after[len(before) :]
        self._context, self._decoded = self._decoded, len(self._tokens)
        indices = [self._text.find(stop, max(0, old_length - len(stop) + 1)) for stop in self._stops]
        if matches := [index for index in indices if index >= 0]:
            self._text, self.stopped = self._text[: min(matches)], True

    def text(self, final: bool) -> str:
        """Return the text; unless `final`, without an ending that may yet become a stop string."""
        if final:
            return self._text
        held = max((_overlap(self._text, stop) for stop in self._stops), default=0)
        return self._text[: len(self._text) - held]


@dataclass(eq=False)
class Request:
    """What the engine computes in one row. Other threads may only set `cancelled`."""

    prompt: list[int]
    adapter: str
    deliver: Callable[[Output], None] = field(default=lambda output: None, kw_only=True)
    """Callback on the engine's thread: gets the last output, and every output of a stream."""
    cached_tokens: int = field(default=0, init=False)
    """Number of prompt tokens whose keys and values were already cached."""
    cancelled: bool = field(default=False, init=False)
    finished: bool = field(default=False, init=False)
    """True from its last token on; its row is freed a little later."""

    @cached_property
    def names(self) -> BlockNames:
        """Names of the blocks of its sequence, under which the keys and values are stored."""
        return BlockNames(self.adapter)

    @property
    def reserved(self) -> int:
        """Number of tokens in its row if it writes as many as it may."""
        return len(self.prompt)

    @property
    def sequence(self) -> list[int]:
        """Tokens of its row so far."""
        return self.prompt


@dataclass(eq=False)
class Scoring(Request):
    """A request for the score of `prompt`, a prompt with its whole answer, by the reward model `adapter`."""

    score: float = field(default=0.0, init=False)

    def accept(self, score: float) -> None:
        """Take the score and deliver that it is there."""
        self.score, self.finished = score, True
        self.deliver(Output(finish_reason="stop", prompt_tokens=len(self.prompt)))


@dataclass(eq=False)
class TextGeneration(Request):
    """A request for text."""

    limit: int
    """Maximum number of new tokens."""
    sampling: SamplingParameters
    stop_tokens: frozenset[int]
    transcript: DecodedText
    generator: torch.Generator
    choices: Choices | None = None
    """Texts that the completion must be one of; None allows any text."""
    streaming: bool = False
    in_tokens: bool = False
    """If true, the last output has the tokens and their log-probabilities; not supported with `choices`."""
    tokens: list[int] = field(default_factory=list, init=False)
    log_probs: list[float] = field(default_factory=list, init=False)

    @property
    def reserved(self) -> int:
        return len(self.prompt) + self.limit

    @property
    def sequence(self) -> list[int]:
        return self.prompt + self.tokens

    @property
    def step(self) -> Step:
        """How its next token is chosen."""
        allowed = None if self.choices is None else self.choices.allowed
        return Step(self.sampling, self.generator, self.tokens, allowed, self.in_tokens)

    def accept(self, token: int, log_prob: float) -> None:
        """Add the next token and those that `choices` then forces, and deliver the output."""
        if self.in_tokens:
            self.log_probs.append(log_prob)
        reason = self._write(token)
        while reason is None and self.choices is not None and len(self.choices.allowed) == 1:
            reason = self._write(self.choices.allowed[0])
        self.finished = reason is not None
        if self.finished:
            self.transcript.finish()
        if self.finished or self.streaming:
            self.deliver(self._output("stop" if self.transcript.stopped else reason))

    def _write(self, token: int) -> str | None:
        """Add a token; return the finish reason if it is the last token, otherwise None."""
        self.tokens.append(token)
        if self.choices is not None:
            self.choices.write(token)
        if token in self.stop_tokens:
            return "stop"
        self.transcript.append(token)
        if self.transcript.stopped:
            return "stop"
        return "length" if len(self.tokens) >= self.limit else None

    def _output(self, reason: str | None) -> Output:
        return Output(
            text=self.transcript.text(final=reason is not None),
            finish_reason=reason,
            prompt_tokens=len(self.prompt),
            completion_tokens=len(self.tokens),
            tokens=tuple(self.tokens) if self.in_tokens and reason else (),
            log_probs=tuple(self.log_probs) if reason else (),
        )


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of `stop` that `text` ends with."""
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)
