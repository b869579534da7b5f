"""Improves an agent inside the program that runs it: it fails, reads advice and tries again.

    coach = Reflector()

    @coach.improve(trials=3, score=check)
    def agent(task, advice=""):
        return graph.invoke({"messages": [("system", f"Be brief. {advice}"), ("user", task)]})

Every attempt, advice and score is stored as a fact of the run, in the arm that `collect` fills, so `train` and `export`
read them. Some tasks are retried without advice, in an arm of their own; whatever those retries gain is luck. The
answer is never worse than the first attempt: the best attempt is returned, and a failing reflector or store only ends
the retries.
"""

import asyncio
import functools
import inspect
import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, Self, TypeVar, cast, overload

from pydantic import ValidationError

from retroformer.agents.attempt_result import AttemptResult, as_trajectory, parse_score, read_result
from retroformer.coach.agent_call import prepare, refuse_unfinished, refuse_unusable, task_parameter
from retroformer.coach.connection import Connection
from retroformer.coach.recorder import Gains, OpenTask, gains_in
from retroformer.coach.session import Score, Session, Watch
from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import Endpoint
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput, RetroformerError
from retroformer.files.bounded import first_fault
from retroformer.method.records import Key, Outcome
from retroformer.run.adapter_names import REFLECTOR
from retroformer.run.adapters import finished_advisers
from retroformer.run.arm_names import COLLECT

_LOGGER = logging.getLogger(__name__)
_RANDOM = random.SystemRandom()
"""Draws the unadvised tasks. Not the global generator, which the agent may seed."""

AgentFunction = TypeVar("AgentFunction", bound=Callable[..., Any])


class Invalid(InfrastructureFailure):
    """Raise this in an agent or its score function if an attempt could not be carried out.

    The attempt then counts as neither success nor failure.
    """


class Advice(NamedTuple):
    """Advice for a task that this program does not repeat."""

    text: str
    run: str
    """Name of the story, for `Reflector.outcome`."""


class Reflector(AbstractContextManager["Reflector"]):
    """A reflector, and the store in which its advice is rated.

    Use it from any number of threads and processes; a forked process opens a connection of its own.

    Args:
        base_url: OpenAI-compatible `/v1` address of the reflector, such as that of `retroformer serve`. Without it the
            model is loaded in this process at the first call, with the extra `serve`; it serves the same answers.
        store: SQLAlchemy URL of the store, which is created if it does not exist; by default the file of the run,
            runs/RUN/experience.db.
        run: name of the run in the store, as `run` of a config.
        model: name of the reflector at the address. Without an address, `reflector` is the run's trained one, or else
            the default base model, `base`; any other name is the folder of an adapter, or of one in the package.
        teacher: a stronger model that writes the advice in place of the reflector, as `reflector.teacher` of a config:
            `{"base_url": ..., "model": ...}`, and `api_key_env`, `extra_body` or `dollars_per_million`. Leave it out
            once a reflector has been trained on what the teacher wrote.
        api_key_env: environment variable with the API key.
        temperature: sampling temperature of the advice. The paper's 0.9, the default of a config, is too much for the
            default model: in one run 15 of 96 pieces of its advice helped, and 62 of 192 at 0.5.
        max_new_tokens: largest number of tokens of one piece of advice.
        timeout_seconds: longest time from the end of an attempt to the next one, or to the end of the call.
        unadvised: share of the tasks that are retried without advice.
        prompts: prompt pack: `default`, or the path of a YAML file.
        prompt_characters: largest number of characters of an attempt in the reflector's prompt.
        memory: number of most recent pieces of advice that the agent reads.

    Raises:
        ConfigError: an argument is wrong, or the run holds facts made under other conditions.
        MissingInput: there is no such prompt pack.
        StoreError: the store cannot be opened.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        store: str | None = None,
        run: str = "agent",
        model: str = "reflector",
        teacher: Mapping[str, Any] | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        temperature: float = 0.5,
        max_new_tokens: int = 128,
        timeout_seconds: float = 60.0,
        unadvised: float = 0.1,
        prompts: str = "default",
        prompt_characters: int = 24_000,
        memory: int = 3,
    ) -> None:
        if not 0 <= unadvised <= 1:
            raise ConfigError(f"unadvised is {unadvised}: it must be a share of the tasks, from 0 to 1.")
        served_here = base_url is None and teacher is None
        adapters = {REFLECTOR: model} if served_here and model not in ("base", REFLECTOR) else {}
        calls = {"api_key_env": api_key_env, "timeout_seconds": timeout_seconds}
        config = {
            "run": run,
            "store": store,
            "environment": {"name": "agent"},
            "actor": {"prompts": prompts},
            "loop": {"memory": memory},
            "reflector": {
                "endpoint": {**calls, "base_url": base_url, "model": model},
                "teacher": None if teacher is None else {**calls, **teacher},
                "temperature": temperature,
                "max_new_tokens": max_new_tokens,
                "prompt_characters": prompt_characters,
            },
            "serve": {"adapters": adapters},
        }
        try:
            experiment = Experiment.model_validate(config)
        except ValidationError as error:
            raise ConfigError(f"An argument of rf.Reflector cannot be used: {first_fault(error)}.") from None
        writer = experiment.reflector.collector
        if served_here and model != "base":
            writer = writer.named(REFLECTOR if adapters or finished_advisers(experiment) else "base")
        self._open(experiment, writer, unadvised)

    @classmethod
    def of(cls, experiment: Experiment, base_url: SecretUrl) -> Self:
        """Return the reflector of a config, at this address. Raises ConfigError, MissingInput, StoreError."""
        reflector = cls.__new__(cls)
        writer = experiment.reflector.endpoint.model_copy(update={"base_url": base_url})
        reflector._open(experiment, writer, unadvised=0.0)
        return reflector

    def _open(self, experiment: Experiment, writer: Endpoint, unadvised: float) -> None:
        self._experiment, self._writer, self._unadvised = experiment, writer, unadvised
        self._lock = threading.Lock()
        self._connection: Connection | None = Connection(experiment, writer)
        self._inherited = list[Connection | None]()
        _forget_connection_in_children(self)

    @overload
    def improve(self, agent: AgentFunction) -> AgentFunction: ...
    @overload
    def improve(
        self, *, trials: int = 3, score: Score | None = None, watch: Watch | None = None
    ) -> Callable[[AgentFunction], AgentFunction]: ...
    def improve(
        self, agent: Any = None, *, trials: int = 3, score: Score | None = None, watch: Watch | None = None
    ) -> Any:
        """Decorate an agent, `agent(task, advice="")`, sync or async, so that each call is up to `trials` attempts.

        `@coach.improve` without brackets has the defaults of all arguments.

        A call ends with the first attempt of score 1 and returns what the best attempt returned. An exception of the
        first attempt is raised; one of a later attempt only ends the retries. Both count as invalid, and so does an
        attempt that cannot be rated. The agent may be a method, and its task may be passed by name: the task is the
        parameter called `task`, or else the first one. Every attempt gets a deep copy of the task, which it may change;
        a task that cannot be copied is passed as it is.

        Args:
            trials: number of attempts, the first included.
            score: function from the task and what the agent returned to a score from 0 to 1. Without it the agent
                must return a dict with the key `score`.
            watch: observer that sees the steps of each attempt, such as
                `retroformer.integrations.otlp.attempt_spans.AttemptSpans()`; by default what the agent returns shows
                them.

        Raises:
            ConfigError: `trials` is below 1, the agent takes no advice, is a generator or no function, or the score is
                async.
        """
        if trials < 1:
            raise ConfigError(f"trials is {trials}: it must be at least 1, since the first attempt counts.")

        def decorate(agent: AgentFunction) -> AgentFunction:
            refuse_unusable(agent, score)
            asynchronous = inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(type(agent).__call__)
            improved = self._wrap(agent, trials, score, watch, asynchronous=asynchronous)
            return cast(AgentFunction, functools.wraps(agent, updated=())(improved))

        return decorate if agent is None else decorate(agent)

    def advise(self, task: Any, attempt: Any, score: float = 0.0) -> Advice:
        """Store a failed attempt and return advice, for a task that this program does not repeat.

        Args:
            task: the task, a text or any JSON.
            attempt: what the agent did, in a form of `retroformer.agents.attempt_result`: a text, messages or steps.
            score: its score, from 0 and below 1.

        Raises:
            ValueError: the attempt has another form, or the score is out of bounds.
            InfrastructureFailure: the attempt is too long to store, or the reflector did not answer.
            StoreError: the store failed.
        """
        rated = parse_score(score)
        if rated == 1:
            raise ValueError("an attempt of score 1 has succeeded: ask for advice on a failure")
        story, result = OpenTask.of(task), _result_with_score(attempt, rated)
        with self._use_connection() as connection:

            async def work() -> Advice:
                failure = await connection.recorder.keep(story, result)
                return Advice(await connection.recorder.next_advice(story, failure), story.task.key)

            return connection.background.start(work()).result()

    def outcome(self, run: str, score: float, attempt: Any = "") -> None:
        """Store what became of a task after its advice; the difference of the scores rates the advice.

        Args:
            run: name of the story, from `advise`.
            score: score of the attempt that followed the advice, from 0 to 1.
            attempt: what the agent did in it, if that is of interest.

        Raises:
            MissingInput: there is no such story.
            ValueError: the attempt has another form, the score is out of bounds, or the story has another outcome.
            InfrastructureFailure: the attempt is too long to store.
            StoreError: the store failed.
        """
        result = _result_with_score(attempt, parse_score(score))
        with self._use_connection() as connection:

            async def work() -> None:
                first = await connection.ledger.ask(connection.store.trajectory, Key(arm=COLLECT, task_id=run))
                if first is None:
                    raise MissingInput(
                        f"There is no story {run!r} in this store: give the `run` that `advise` returned."
                    )
                story = OpenTask(first.task, first.opening, trial=1)
                kept = await connection.recorder.keep(story, result)
                if kept.outcome is Outcome.INVALID:
                    raise InfrastructureFailure(kept.cause)
                if kept != as_trajectory(story.task, story.opening, result):
                    raise ValueError(f"the story {run!r} already has a different outcome, and a story has only one")

            connection.background.start(work()).result()

    def gains(self) -> Gains:
        """Return the mean gain of retries with advice and without. Raises StoreError.

        Retries after `advise` count as advised, although none of them is drawn to go without.
        """
        with self._use_connection() as connection:
            return gains_in(connection.store)

    def close(self) -> None:
        """Close the store and the connections once no call is in progress; the next use opens them again."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wrap(
        self, agent: Callable[..., Any], trials: int, score: Score | None, watch: Watch | None, *, asynchronous: bool
    ) -> Callable[..., Any]:
        parameter = task_parameter(agent)

        async def improved(*arguments: Any, **named: Any) -> Any:
            task, attempt = prepare(agent, parameter, arguments, named)
            with ExitStack() as stack:
                try:
                    connection = stack.enter_context(self._use_connection())
                except RetroformerError as error:
                    _LOGGER.warning("The agent runs without advice: %s", error)
                    return await attempt("") if asynchronous else attempt("")
                story = OpenTask.of(task, advised=_RANDOM.random() >= self._unadvised)
                session = Session(story, connection.recorder, task, trials, score)
                while session.open:
                    with nullcontext(lambda: None) if watch is None else watch.attempt() as read_steps:
                        try:
                            returned = attempt(session.advice)
                            returned = await returned if asynchronous else returned
                        except (Exception, SystemExit) as error:
                            if connection.is_inherited:
                                raise
                            work = session.end_by_crash(error)
                        else:
                            if connection.is_inherited:
                                return returned
                            refuse_unfinished(returned)
                            work = session.add_attempt(returned, session.result_of(returned, read_steps()))
                    storing = connection.background.start(session.finish(work, self._writer.timeout_seconds))
                    await asyncio.wrap_future(storing) if asynchronous else storing.result()
                return session.best

        def improved_now(*arguments: Any, **named: Any) -> Any:
            # Without an asynchronous agent there is nothing to wait for, so the coroutine ends at its first step.
            try:
                improved(*arguments, **named).send(None)
            except StopIteration as ended:
                return ended.value

        return improved if asynchronous else improved_now

    @contextmanager
    def _use_connection(self) -> Iterator[Connection]:
        """Yield this process's connection for one call. Raises StoreError, ConfigError, MissingInput."""
        with self._lock:
            if self._connection is None:
                self._connection = Connection(self._experiment, self._writer)
            stack = ExitStack()
            stack.enter_context(self._connection.call())
            connection = self._connection
        with stack:
            yield connection


def _forget_connection_in_children(reflector: Reflector) -> None:
    """Have a forked process open a connection of its own, with a lock that no thread of its parent holds."""
    reference = weakref.ref(reflector)

    def forget() -> None:
        if (child := reference()) is not None:
            # Kept alive: closing the parent's files here would close its transactions.
            child._inherited.append(child._connection)
            child._connection, child._lock = None, threading.Lock()

    os.register_at_fork(after_in_child=forget)


def _result_with_score(attempt: Any, score: float) -> AttemptResult:
    """Return an attempt with this score, whatever score is in it. Raises ValueError if it has another form."""
    return read_result({**attempt, "score": score} if isinstance(attempt, Mapping) else attempt, None, lambda *_: score)
