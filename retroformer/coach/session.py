"""One call of an improved agent: attempts with advice between them, of which the best is returned."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from retroformer.agents.attempt_result import AttemptResult, is_result, read_result
from retroformer.coach.recorder import ChainRecorder, OpenTask
from retroformer.errors import InfrastructureFailure, RetroformerError

_LOGGER = logging.getLogger(__name__)
_UNRATED_RANK = -1.0
"""Rank of an attempt without a score: below every score."""

Score = Callable[[Any, Any], Any]
"""Function from a task and what the agent returned to a score from 0 to 1."""
ReadSteps = Callable[[], Mapping[str, Any] | None]
"""Function that returns, after an attempt, its `steps` or `messages` and its `usage`, as in
`retroformer.agents.attempt_result`; None if nothing was observed."""


class Watch(Protocol):
    """Observer of attempts."""

    def attempt(self) -> AbstractContextManager[ReadSteps]:
        """Watch one attempt for the time of a `with` block, in the thread or task that enters it."""
        ...


class Session:
    """State of the call: the advice for the next attempt, and the best attempt so far."""

    def __init__(self, story: OpenTask, recorder: ChainRecorder, task: Any, trials: int, score: Score | None) -> None:
        self._story, self._recorder, self._task, self._trials, self._score = story, recorder, task, trials, score
        self._best: tuple[float, Any] | None = None
        self._error: BaseException | None = None
        self.open = True
        """True if another attempt is due."""
        self.advice = ""

    @property
    def best(self) -> Any:
        """What the best attempt returned, the earliest among equals. Raises the error of a first attempt."""
        if self._best is None:
            assert self._error is not None
            raise self._error
        return self._best[1]

    def result_of(self, returned: Any, observed: Mapping[str, Any] | None) -> AttemptResult | BaseException:
        """Return the steps and the score of an attempt, or the error that rating it raised.

        Observed steps count in place of those in what the agent returned.
        """
        try:
            return self._read(returned, observed)
        except (Exception, SystemExit) as error:  # Foreign code: the score, and the attempt's own objects.
            return error

    async def add_attempt(self, returned: Any, result: AttemptResult | BaseException) -> None:
        """Store an attempt, and have the advice for the next one written if one is due."""
        if isinstance(result, BaseException):
            self._remember(_UNRATED_RANK, returned)
            await self._end_invalid(result, "could not be rated")
            return
        self._remember(result.score, returned)
        try:
            failure = await self._recorder.keep(self._story, result)
            self.open = result.score < 1 and self._story.trial + 1 < self._trials
            if self.open:
                self.advice = await self._recorder.next_advice(self._story, failure)
        except Exception as error:  # The program runs on without advice, whatever stands in the way of it.
            self._give_up(error)

    async def end_by_crash(self, error: BaseException) -> None:
        """Count an attempt that raised an error, and end the call."""
        self._error = error
        await self._end_invalid(error, "crashed")

    async def finish(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        """Do the work after an attempt; if it takes longer than this, the call ends."""
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            self._give_up(InfrastructureFailure(f"The store and the reflector took more than {seconds:g} s."))

    def _read(self, returned: Any, observed: Mapping[str, Any] | None) -> AttemptResult:
        form = dict(returned) if isinstance(returned, Mapping) else returned
        if not is_result(form):
            # A message of LangChain or of the OpenAI client has a content; anything else is its text.
            form = [returned] if hasattr(returned, "content") else str(returned)
        if observed is not None:
            own = form if isinstance(form, dict) else {"output": form} if isinstance(form, str) else {}
            form = {name: own[name] for name in ("output", "score") if name in own} | dict(observed)
        if self._score is None:
            return read_result(form, self._task)
        rated = self._score(self._task, returned)
        if isinstance(form, dict):
            form["score"] = rated
        try:
            return read_result(form, self._task, lambda *_: rated)
        except ValueError:
            # The score is what counts: the rest is shown to the reflector as it is.
            return read_result(str(returned), self._task, lambda *_: rated)

    def _remember(self, score: float, returned: Any) -> None:
        if self._best is None or score > self._best[0]:
            self._best = score, returned

    async def _end_invalid(self, error: BaseException, what: str) -> None:
        self.open = False
        if self._best is not None:
            _LOGGER.warning("An attempt at %s %s; the best one counts.", self._story.task.key, what, exc_info=error)
        try:
            await self._recorder.keep_invalid(self._story, error)
        except Exception as failure:
            self._give_up(failure)

    def _give_up(self, error: Exception) -> None:
        bug = not isinstance(error, RetroformerError)
        _LOGGER.warning("The task %s is not retried: %s", self._story.task.key, error, exc_info=bug)
        self.open = False
