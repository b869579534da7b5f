"""The runs of the gateway: records the calls of their attempts, takes the scores, and has the advice written.

A run works on one task, or on several that its calls and scores name. Each has a story, as in `retroformer.Reflector`:
it ends with a score of 1, after `trials` attempts, or if no advice can be written. The next call begins another one.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from retroformer.coach.connection import Connection
from retroformer.coach.recorder import OpenTask
from retroformer.coach.reflector import Invalid
from retroformer.errors import RetroformerError, StoreError
from retroformer.integrations.gateway.answers import RecordedAnswer
from retroformer.integrations.gateway.drafts import Draft, Drafts, ScoreReceipt
from retroformer.method.records import ChatMessage, Outcome

_LOGGER = logging.getLogger(__name__)
_MOST_IN_MEMORY = 1000
"""Number of drafts in memory; the others are read from the store when they are used."""
_STORE_SECONDS = 5.0
"""Longest wait for a store that does not answer; then the agent goes on unrecorded."""
_RANDOM = random.SystemRandom()
"""Draws the unadvised tasks."""


class NoAttemptToScore(ValueError):
    """A score for an attempt without a recorded call."""


@dataclass
class Call:
    """One recorded call of an attempt."""

    run: str
    task: str
    draft: Draft
    number: int
    """Number of the attempt that it belongs to."""
    sent: list[ChatMessage]
    advice: str
    """Advice that the agent reads in this attempt; empty if there is none."""
    over: bool = False
    """True once it is recorded or forgotten."""


class Runs:
    """All runs, by their names and tasks. Used from one event loop."""

    def __init__(self, connection: Connection, drafts: Drafts, trials: int, unadvised: float) -> None:
        self._connection, self._drafts, self._trials, self._unadvised = connection, drafts, trials, unadvised
        self._open: OrderedDict[tuple[str, str], Draft] = OrderedDict()
        self._loading = asyncio.Lock()

    async def begin(self, run: str, task: str, sent: list[ChatMessage]) -> Call | None:
        """Begin a call once the previous attempt has been scored.

        Returns None, and records nothing, if the store fails or does not answer.
        """
        try:
            draft = await self._idle_draft(run, task)
        except StoreError as error:
            _LOGGER.warning("The run %r goes on without advice and is not recorded: %s", run, error)
            return None
        draft.in_flight += 1
        draft.scored = None
        return Call(run, task, draft, draft.number, sent, draft.story.advice)

    async def end(self, call: Call, answer: RecordedAnswer | None) -> None:
        """Record a call with its answer, or forget it if it has none; it is stored when this returns.

        Nothing happens if the call has ended already.
        """
        if call.over:
            return
        call.over, draft = True, call.draft
        draft.in_flight -= 1
        # An answer that comes after the score belongs to an attempt that is over.
        if answer is not None and (message := answer.message) is not None and draft.number == call.number:
            draft.add(call.sent, message, answer.usage)
            await self._save(call.run, call.task, draft)

    async def score(self, run: str, task: str, score: float) -> ScoreReceipt:
        """End an attempt with its score, from 0 to 1, and have the advice for the next one written.

        The same score again, before the next call, returns the same receipt.

        Raises:
            NoAttemptToScore: no call was recorded.
            StoreError: the store failed; the score can be given again.
        """
        draft = await self._idle_draft(run, task)
        async with draft.lock:
            if draft.scored is not None and draft.scored[0] == score:
                return draft.scored[1]
            if not draft.conversations:
                raise NoAttemptToScore(f"No call of the run {run!r} was recorded since its last score.")
            story, recorder, start = draft.story, self._connection.recorder, self._connection.background.start
            trial, error = story.trial, ""
            kept = await asyncio.wrap_future(start(recorder.keep(story, draft.result(score))))
            draft.end()
            over = kept.outcome is Outcome.SUCCESS or trial + 1 >= self._trials
            if not over:
                try:
                    await asyncio.wrap_future(start(recorder.next_advice(story, kept)))
                except RetroformerError as failure:
                    _LOGGER.warning("The next attempt of run %r gets no advice: %s", run, failure)
                    over, error = True, str(failure)
            receipt = ScoreReceipt(story.task.key, trial, "" if over else story.advice, over, error)
            if over:
                self._open[run, task] = draft = self._first_draft(run, task)
            draft.scored = score, receipt
            await self._save(run, task, draft)
            return receipt

    async def discard(self, run: str, task: str, cause: str) -> ScoreReceipt:
        """Discard an attempt that could not be carried out; its trial is repeated. Raises StoreError."""
        draft = await self._idle_draft(run, task)
        async with draft.lock:
            counted = self._connection.recorder.keep_invalid(draft.story, Invalid(cause))
            await asyncio.wrap_future(self._connection.background.start(counted))
            draft.end()
            await self._save(run, task, draft)
            return ScoreReceipt(draft.story.task.key, draft.story.trial, draft.story.advice)

    async def _idle_draft(self, run: str, task: str) -> Draft:
        """Return the draft of this run and task once no score of it is being taken. Raises StoreError."""
        draft = await self._draft(run, task)
        while draft.lock.locked():
            async with draft.lock:
                pass
            # The score may have ended its story.
            draft = await self._draft(run, task)
        return draft

    async def _draft(self, run: str, task: str) -> Draft:
        """Return the draft in memory, else the stored one, else a new one. Raises StoreError."""
        if draft := self._open.get((run, task)):
            self._open.move_to_end((run, task))
            return draft
        try:
            async with asyncio.timeout(_STORE_SECONDS), self._loading:
                stored = self._open.get((run, task)) or await self._drafts.load(run, task)
        except TimeoutError:
            raise StoreError(f"The store gave no answer within {_STORE_SECONDS:.0f} s: try again later.") from None
        self._open[run, task] = draft = self._open.get((run, task)) or stored or self._first_draft(run, task)
        # A stored draft can be read again.
        for name, other in list(self._open.items())[:-_MOST_IN_MEMORY]:
            if not other.in_flight and not other.lock.locked():
                del self._open[name]
        return draft

    def _first_draft(self, run: str, task: str) -> Draft:
        story = OpenTask.of({"id": task or run}, advised=_RANDOM.random() >= self._unadvised)
        story.opening = ""
        return Draft(story=story)

    async def _save(self, run: str, task: str, draft: Draft) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STORE_SECONDS):
                    await self._drafts.save(run, task, draft)
        except StoreError as error:
            _LOGGER.warning("The attempt of the run %r is kept in memory only: %s", run, error)
