"""One request on its way through the engine: its tokens, its text so far and when it is finished."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from serve.choices import Choices
from serve.sampling import Sampling, choose

UNFINISHED_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class Output:
    """What a request has produced so far, or why it failed."""

    text: str = ""
    finish_reason: str | None = None
    """`stop` or `length` on the last output, None before."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's, those whose keys and values were there already."""
    failure: str = ""
    """The engine's error in words; empty where there is none."""
    tokens: tuple[int, ...] = ()
    """All that were written, the one that ended the request included; where they were asked for, on the last output."""
    log_probs: tuple[float, ...] = ()
    """Of each of these tokens, as the model gives them: at temperature 1 and with nothing left out."""


class Transcript:
    """Text of the tokens so far. It is decoded piecewise, so that long answers cost no more per token than short."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._tokens: list[int] = []
        self._context = self._decoded = 0
        self._text = ""
        self.stopped = False

    def append(self, token: int) -> None:
        """Add a token; `stopped` tells whether a stop string has appeared, which ends the text before it."""
        self._tokens.append(token)
        # Decoding behind the last few tokens keeps spaces and characters that the first token alone would lose.
        before = self._decode(self._tokens[self._context : self._decoded])
        after = self._decode(self._tokens[self._context :])
        if after.endswith(UNFINISHED_CHARACTER) or len(after) <= len(before):
            return
        old_length = len(self._text)
        self._text += after[len(before) :]
        self._context, self._decoded = self._decoded, len(self._tokens)
        self._cut_at_stop(old_length)

    def finish(self) -> None:
        """No token will follow: what is left of an unfinished character is shown as it is."""
        if not self.stopped and self._decoded < len(self._tokens):
            old_length = len(self._text)
            before = self._decode(self._tokens[self._context : self._decoded])
            self._text += self._decode(self._tokens[self._context :])[len(before) :]
            self._decoded = len(self._tokens)
            self._cut_at_stop(old_length)

    def text(self, final: bool) -> str:
        """Before the end without what may yet become a stop string."""
        if final:
            return self._text
        held = max((_overlap(self._text, stop) for stop in self._stops), default=0)
        return self._text[: len(self._text) - held]

    def _cut_at_stop(self, old_length: int) -> None:
        found = [self._text.find(stop, max(0, old_length - len(stop) + 1)) for stop in self._stops]
        places = [place for place in found if place >= 0]
        if places:
            self._text, self.stopped = self._text[: min(places)], True


@dataclass(eq=False)
class Generation:
    """A request that the engine works on. Only `cancelled` is set from outside the engine's thread."""

    prompt: list[int]
    adapter: str
    limit: int
    """New tokens at most."""
    sampling: Sampling
    stop_tokens: frozenset[int]
    transcript: Transcript
    deliver: Callable[[Output], None]
    """Called from the engine's thread with each output if `streaming`, and with the last one in any case."""
    generator: torch.Generator
    choices: Choices | None = None
    """What it may write; None where it may write anything."""
    streaming: bool = False
    in_tokens: bool = False
    """Whether its tokens and their log-probabilities are asked for; not together with `choices`."""
    echo: str = ""
    cached_tokens: int = 0
    cancelled: bool = False
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def reserved(self) -> int:
        """Tokens of its row when it writes all it may."""
        return len(self.prompt) + self.limit

    @property
    def sequence(self) -> list[int]:
        """Its prompt and what it has written."""
        return self.prompt + self.tokens

    def accept(self, logits_V: torch.Tensor) -> bool:
        """Choose the token that follows all the others, add those that can only come next, and deliver what they add.

        True while the request goes on.
        """
        allowed = None if self.choices is None else self.choices.allowed
        token = choose(logits_V, self.sampling, self.tokens, self.generator, allowed)
        if self.in_tokens:
            self.log_probs.append(float(logits_V.log_softmax(0)[token]))
        reason = self._write(token)
        while reason is None and self.choices is not None and len(self.choices.allowed) == 1:
            reason = self._write(self.choices.allowed[0])
        if reason is not None:
            self.transcript.finish()
        if reason is not None or self.streaming:
            self.deliver(self._output("stop" if self.transcript.stopped else reason))
        return reason is None and not self.cancelled

    def fail(self, failure: str) -> None:
        """Tell the client; should a row be held already, the engine frees it on its next turn."""
        self.cancelled = True
        self.deliver(Output(finish_reason="stop", failure=failure))

    def _write(self, token: int) -> str | None:
        """Add a token; the reason to finish, if it is the last one."""
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
            text=self.echo + self.transcript.text(final=reason is not None),
            finish_reason=reason,
            prompt_tokens=len(self.prompt),
            completion_tokens=len(self.tokens),
            cached_tokens=self.cached_tokens,
            tokens=tuple(self.tokens) if self.in_tokens and reason else (),
            log_probs=tuple(self.log_probs) if reason else (),
        )


def _overlap(text: str, stop: str) -> int:
    """Length of the longest true beginning of `stop` that `text` ends with."""
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)
