"""Continuous batching: one thread admits, computes and finishes requests.

Each iteration of its loop gives rows to waiting requests and makes one forward pass for all rows, which computes the
next chunk of a prompt or the next token. So a request joins between two tokens of the others, and leaves on its own.
"""

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from .attention import can_share
from .generation import Output, Request, Scoring, TextGeneration
from .model import Model
from .prefixes import PrefixStore, blocks_to_share, common_blocks, token_budget
from .sampling import choose
from .slots import KeyValueSlots

CHUNK_TOKENS = 256
"""Prompt tokens per pass while running rows wait for it."""
LONE_CHUNK_TOKENS = 2048
"""Prompt tokens per pass while no row is running."""

STOP_SECONDS = 5.0
"""Longest wait for a pass at the end of the program."""

logger = logging.getLogger(__name__)


class Engine:
    """Runs requests. `submit` takes them from any thread; each request's `deliver` receives its outputs."""

    def __init__(self, model: Model, max_batch: int, gpu_share: float = 1.0) -> None:
        """Start it, with at most `max_batch` rows; all its memory may take this share of a GPU."""
        budget = token_budget(model.geometry, gpu_share)
        self._model = model
        self._max_batch = max_batch
        self._budget_tokens = max(budget.running, model.context_tokens)
        self._rows: list[Request] = []
        self._store = PrefixStore(model.geometry, budget.prefixes)
        self._slots = KeyValueSlots(model.geometry, self._budget_tokens, self._store)
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._pass_began: float | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @property
    def load(self) -> int:
        """Number of requests in the engine, running or waiting."""
        with self._changed:
            return len(self._waiting) + len(self._rows)

    @property
    def alive(self) -> bool:
        """True while the engine's thread lives."""
        return self._thread.is_alive()

    @property
    def pass_seconds(self) -> float:
        """Seconds that the current pass has taken so far; 0 between passes."""
        began = self._pass_began
        return 0.0 if began is None else time.monotonic() - began

    def uses_adapter(self, adapter: str) -> bool:
        """Return True if requests for `adapter` are running or waiting."""
        with self._changed:
            requests = (*self._waiting, *self._rows)
            return any(request.adapter == adapter and not request.finished for request in requests)

    def submit(self, generation: Request) -> None:
        with self._changed:
            self._waiting.append(generation)
            self._changed.notify()

    def _stop(self) -> None:
        """End the passes: one that goes on while the interpreter ends would abort the process."""
        self._stopped = True
        if self._rows:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._admit_requests()
                self._pass_began = time.monotonic()
                self._run_pass()
            except Exception as error:  # Any error may fail only the requests that it concerns.
                self._fail(error)
            self._pass_began = None

    def _fail(self, error: Exception) -> None:
        """Fail rows that were reading prompts or cannot go on, else all rows; a failed pass leaves rows unchanged."""
        every = range(len(self._rows))
        rows = [row for row in every if self._remaining(row) > 0 or not self._pending(row)] or every
        failed = [self._rows[row] for row in rows]
        for row in reversed(rows):
            self._free_row(row)
        _deliver_failure(failed, error)

    def _admit_requests(self) -> None:
        """Free the rows of cancelled requests and give rows to waiting requests; sleep while there are no requests."""
        for row in reversed(range(len(self._rows))):
            if self._rows[row].cancelled:
                self._finish_row(row)
        before = len(self._rows)
        with self._changed:
            while not (self._waiting or self._rows):
                self._changed.wait()
            skipped: deque[Request] = deque()
            full = False
            while self._waiting and not full:
                generation = self._waiting.popleft()
                if generation.cancelled:
                    continue
                full = not self._fits(generation)
                try:
                    if full or not self._admit(generation):
                        skipped.append(generation)
                except Exception as error:  # Without memory for its row, say.
                    _deliver_failure([generation], error)
            self._waiting.extendleft(reversed(skipped))
        if len(self._rows) > before:
            self._share_prefixes()

    def _fits(self, generation: Request) -> bool:
        """Return True if there is a row for it, and memory for all tokens that the rows may still write."""
        together = [*self._rows, generation]
        longest = max(member.reserved for member in together)
        return len(together) == 1 or (
            len(together) <= self._max_batch and len(together) * longest <= self._budget_tokens
        )

    def _admit(self, generation: Request) -> bool:
        """Give it a row unless another row is computing most of its prompt; return False if it waits for that row."""
        # The last prompt token is always computed: its logits choose the first new token.
        length = len(generation.prompt) - 1
        names = generation.names.of(generation.prompt[:length])
        cached = self._store.count(names)
        for row, other in enumerate(self._rows):
            if other.adapter != generation.adapter:
                continue
            is_equal, remaining = other.prompt == generation.prompt, self._remaining(row)
            if is_equal and remaining <= 1 and self._slots.prefixes[row].tokens <= length:
                self._slots.copy_row(row, len(self._rows))
                self._slots.lengths[-1] = length
                break
            if remaining > 1 and (is_equal or common_blocks(other.names.of(other.prompt), names) >= cached + 2):
                return False
        else:
            self._slots.add(self._store.prefix(names[:cached]))
        self._rows.append(generation)
        generation.cached_tokens = self._slots.lengths[-1]
        return True

    def _share_prefixes(self) -> None:
        """Choose the stored prefixes that rows read together; other rows read copies of theirs."""
        texts = [self._stored_blocks(row) for row in range(len(self._rows))]
        for row, (names, count) in enumerate(zip(texts, blocks_to_share(texts), strict=True)):
            self._slots.read_in_place(row, self._store.prefix(names[:count]))

    def _stored_blocks(self, row: int) -> list[bytes]:
        """Return the names of the stored blocks of the row's prompt that it could read in place."""
        prompt = self._rows[row].prompt[: self._slots.lengths[row]]
        names = self._rows[row].names.of(prompt if can_share(self._model.geometry.device) else [])
        return names[: self._store.count(names)]

    def _run_pass(self) -> None:
        """Make one pass: for each row the next part of its prompt, within the chunk, or its next token."""
        columns = self._columns()
        if not columns:
            return
        arriving = [self._remaining(row) > 0 for row in range(len(columns))]
        result = self._model.forward(columns, self._slots, [generation.adapter for generation in self._rows])
        complete = [row for row in range(len(columns)) if self._remaining(row) <= 0]
        steps = {row: request.step for row in complete if isinstance(request := self._rows[row], TextGeneration)}
        chosen = choose(result.logits_BV, steps)
        for row in reversed(complete):
            request = self._rows[row]
            if arriving[row]:
                self._store_row(row)
            if isinstance(request, TextGeneration):
                request.accept(*chosen[row])
            elif isinstance(request, Scoring):
                request.accept(result.scores[row])
            if request.finished or request.cancelled:
                self._finish_row(row)

    def _columns(self) -> list[list[int]]:
        """Return the tokens that each row adds to the next pass."""
        remaining = [self._remaining(row) for row in range(len(self._rows))]
        budget = CHUNK_TOKENS if min(remaining, default=0) <= 0 else LONE_CHUNK_TOKENS
        columns = []
        for row, rest in enumerate(remaining):
            tokens = self._pending(row)
            if rest > 0:
                tokens = tokens[: max(1, budget)]
                budget -= len(tokens)
            columns.append(tokens)
        return columns

    def _pending(self, row: int) -> list[int]:
        """Return the row's tokens that must be computed before its next token can be chosen."""
        return self._rows[row].sequence[self._slots.lengths[row] :]

    def _remaining(self, row: int) -> int:
        """Return the number of prompt tokens still to be computed; 0 or negative once the prompt is done."""
        return len(self._rows[row].prompt) - self._slots.lengths[row]

    def _finish_row(self, row: int) -> None:
        """Free the row but keep its keys and values: the next turn of a conversation begins with the same tokens."""
        self._store_row(row)
        self._free_row(row)

    def _free_row(self, row: int) -> None:
        self._slots.drop(row)
        self._rows[row] = self._rows[-1]
        self._rows.pop()

    def _store_row(self, row: int) -> None:
        generation = self._rows[row]
        names = generation.names.of(generation.sequence[: self._slots.lengths[row]])
        self._store.remember(names, lambda *where: self._slots.read(row, *where), kept=self._slots.prefixes)


def _deliver_failure(requests: Sequence[Request], error: Exception) -> None:
    logger.exception("%d requests failed", len(requests), exc_info=error)
    for request in requests:
        request.deliver(Output(finish_reason="stop", failure=f"{type(error).__name__}: {error}"))
