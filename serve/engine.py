"""Continuous batching: one thread that admits, computes and finishes requests.

Each turn of its loop takes waiting requests into a group of arrivals, advances their prompts by one chunk, and
decodes one token of every running row. So a request joins between two tokens of the others, and leaves alone.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from serve.generation import Generation
from serve.geometry import token_budget
from serve.model import Model
from serve.prefixes import BLOCK_TOKENS, PrefixStore
from serve.slots import KeyValueSlots

GROUP_TOKENS = 512
"""Of a group's prompts together, padding included: more would gain nothing and make its first member wait."""
GROUP_ROWS = 8
"""Prompts in a group at most: while they are computed, their keys and values take memory of their own."""
CHUNK_TOKENS = 256
"""Of prompts, between two tokens of the running rows."""
LONE_CHUNK_TOKENS = 2048
"""Of prompts, where no row is running."""

logger = logging.getLogger(__name__)


@dataclass
class Arrivals:
    """Requests whose prompts are computed together. Twins have the same prompt and adapter as their leader."""

    leaders: list[Generation] = field(default_factory=list)
    twins: dict[int, list[Generation]] = field(default_factory=dict)
    """By the leader's place."""
    remaining: list[int] = field(default_factory=list)
    """Of each leader's prompt, how many tokens are still to be computed."""

    def __len__(self) -> int:
        return len(self.leaders) + sum(len(twins) for twins in self.twins.values())

    @property
    def members(self) -> list[Generation]:
        return self.leaders + [twin for twins in self.twins.values() for twin in twins]


class Engine:
    """Requests go in by `submit` from any thread; their outputs come by their `deliver`."""

    def __init__(self, model: Model, max_batch: int) -> None:
        budget = token_budget(model.geometry)
        self._model = model
        self._max_batch = max_batch
        self._budget_tokens = max(budget.running, model.context_tokens)
        self._running: list[Generation] = []
        self._slots = KeyValueSlots(model.geometry, self._budget_tokens)
        self._arrivals = Arrivals()
        self._arrival_slots = KeyValueSlots(model.geometry, self._budget_tokens)
        self._prefixes = PrefixStore(budget.prefixes)
        self._waiting: deque[Generation] = deque()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    @property
    def load(self) -> int:
        """Requests that are in the engine, running or waiting."""
        with self._changed:
            return len(self._waiting) + len(self._arrivals) + len(self._running)

    def submit(self, generation: Generation) -> None:
        with self._changed:
            self._waiting.append(generation)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            try:
                self._gather()
                self._advance_arrivals()
            except Exception as error:  # An error of any kind may only cost the requests that are concerned.
                self._fail(self._arrivals.members, error)
                self._arrivals = Arrivals()
                self._arrival_slots.clear()
            try:
                self._decode()
            except Exception as error:
                self._fail(self._running, error)
                self._running = []
                self._slots.clear()

    def _fail(self, generations: Sequence[Generation], error: Exception) -> None:
        logger.exception("%d requests failed", len(generations), exc_info=error)
        for generation in generations:
            generation.fail(f"{type(error).__name__}: {error}")

    def _gather(self) -> None:
        """Take waiting requests into the arrivals; sleep while there is nothing to do."""
        with self._changed:
            while not (self._waiting or self._running or self._arrivals.leaders):
                self._changed.wait()
            if self._arrivals.leaders:
                return
            skipped: deque[Generation] = deque()
            full = False
            while self._waiting and not full:
                generation = self._waiting.popleft()
                if generation.cancelled:
                    continue
                if not self._fits(generation):
                    full = True
                if full or not self._join(generation):
                    skipped.append(generation)
            self._waiting.extendleft(reversed(skipped))
        self._begin_arrivals()

    def _fits(self, generation: Generation) -> bool:
        """Whether there is a row for it, and memory for all that the rows may yet write."""
        together = [*self._running, *self._arrivals.members, generation]
        longest = max(member.reserved for member in together)
        return len(together) == 1 or (
            len(together) <= self._max_batch and len(together) * longest <= self._budget_tokens
        )

    def _join(self, generation: Generation) -> bool:
        """Put it with the arrivals if that costs nobody; a request that comes first always joins."""
        cached = self._prefixes.count(generation.adapter, generation.prompt[:-1])
        for place, leader in enumerate(self._arrivals.leaders):
            if leader.adapter != generation.adapter:
                continue
            if leader.prompt == generation.prompt:
                self._arrivals.twins.setdefault(place, []).append(generation)
                return True
            if _common_length(leader.prompt, generation.prompt[:-1]) >= cached + 2 * BLOCK_TOKENS:
                return False  # After the leader's prompt is computed, most of this one will be there already.
        remaining = len(generation.prompt) - cached
        rows = len(self._arrivals.leaders) + 1
        padded = rows * max([remaining, *self._arrivals.remaining])
        if rows > 1 and (rows > GROUP_ROWS or padded > GROUP_TOKENS):
            return False
        self._arrivals.leaders.append(generation)
        self._arrivals.remaining.append(remaining)
        return True

    def _begin_arrivals(self) -> None:
        arrivals, slots = self._arrivals, self._arrival_slots
        if not arrivals.leaders:
            return
        slots.reserve(len(arrivals.leaders), max(len(leader.prompt) for leader in arrivals.leaders))
        for place, leader in enumerate(arrivals.leaders):
            # At least the last token is computed: its logits choose the first new one.
            slots.write(place, self._prefixes.longest(leader.adapter, leader.prompt[:-1]))
            leader.cached_tokens = slots.lengths[place]
            arrivals.remaining[place] = len(leader.prompt) - leader.cached_tokens
            for twin in arrivals.twins.get(place, ()):
                twin.cached_tokens = len(twin.prompt)

    def _advance_arrivals(self) -> None:
        """Compute the next chunk of the arrivals' prompts; after the last one they run."""
        arrivals, slots = self._arrivals, self._arrival_slots
        if all(member.cancelled for member in arrivals.members):
            slots.clear()
            self._arrivals = Arrivals()
            return
        chunk = (CHUNK_TOKENS if self._running else LONE_CHUNK_TOKENS) // len(arrivals.leaders)
        after = max(0, max(arrivals.remaining) - chunk)
        # Prompts are aligned at their ends: those with less to compute come in with the later chunks.
        columns = [
            leader.prompt[len(leader.prompt) - remaining : len(leader.prompt) - after]
            for leader, remaining in zip(arrivals.leaders, arrivals.remaining, strict=True)
        ]
        logits_BV = self._model.forward(columns, slots, [leader.adapter for leader in arrivals.leaders])
        arrivals.remaining = [min(remaining, after) for remaining in arrivals.remaining]
        if after == 0:
            self._start(logits_BV)

    def _start(self, logits_BV: torch.Tensor) -> None:
        """The arrivals' prompts are computed: choose their first tokens and let them run."""
        arrivals, slots = self._arrivals, self._arrival_slots
        for place, leader in enumerate(arrivals.leaders):
            self._remember(leader.adapter, leader.prompt, slots, place)
            for generation in [leader, *arrivals.twins.get(place, ())]:
                if not generation.cancelled and generation.accept(logits_BV[place]):
                    self._slots.reserve(len(self._running) + 1, len(generation.prompt) + 1)
                    self._slots.copy_row(slots, place, len(self._running))
                    self._running.append(generation)
        slots.clear()
        self._arrivals = Arrivals()

    def _decode(self) -> None:
        """The next token of every running row; rows that are finished or whose client has left are freed."""
        for row in reversed(range(len(self._running))):
            if self._running[row].cancelled:
                self._leave(row)
        if not self._running:
            return
        columns = [generation.pending for generation in self._running]
        held = zip(self._slots.lengths, columns, strict=True)
        self._slots.reserve(len(self._running), max(length + len(tokens) for length, tokens in held))
        adapters = [generation.adapter for generation in self._running]
        logits_BV = self._model.forward(columns, self._slots, adapters)
        for row in reversed(range(len(self._running))):
            if not self._running[row].accept(logits_BV[row]):
                self._leave(row)

    def _leave(self, row: int) -> None:
        """Free the row, and keep what it has computed: the next turn of a conversation begins with it."""
        generation = self._running[row]
        self._remember(generation.adapter, generation.computed, self._slots, row)
        self._slots.drop(row)
        self._running[row] = self._running[-1]
        self._running.pop()

    def _remember(self, adapter: str, tokens: Sequence[int], slots: KeyValueSlots, row: int) -> None:
        self._prefixes.remember(adapter, tokens, lambda start, stop: slots.read(row, start, stop))


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(first), len(second)))
