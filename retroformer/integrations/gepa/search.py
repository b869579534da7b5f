"""The search: GEPA proposes documents, and the actor's retries of stored failures rate them."""

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from gepa.api import optimize as evolve
from gepa.core.adapter import EvaluationBatch, ProposalFn
from gepa.core.result import GEPAResult

from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import check_prompts, reflection_renderer
from retroformer.errors import EndpointFailure, InfrastructureFailure, MissingInput, usage_of
from retroformer.files.durable import write_text
from retroformer.files.text import sha256_of, storable
from retroformer.method.records import Author, Key, Memory, Message, Outcome, Reflection, Trajectory
from retroformer.method.rollout import finish_all
from retroformer.run.arm_names import DOCUMENT, collect_arm
from retroformer.run.given_advice import RetryPlayer, conditions_of_retries, start_retry_player
from retroformer.run.store import Store, open_whole_store

START = "Search the places that were not searched yet, and do not repeat what failed."
"""Document that the search starts from."""
_COMPONENT = "document"
_AUTHOR = Author(endpoint="gepa", model="document")
_MOST_COMPARED = 40
"""Largest number of failures by which documents are compared; the others show what to improve."""
_RETRIES_PER_PROPOSAL = 3
"""Number of retries that one proposal is made from."""
_MOST_DOCUMENTS = 1 << 24
"""Number of candidate numbers, among which a document's own is found by its hash."""


class FailedTask(NamedTuple):
    """A failed first attempt, and the reflector's view of it."""

    attempt: Trajectory
    view: str


class Retry(NamedTuple):
    """A retry of a failure with a document."""

    failure: FailedTask
    attempt: Trajectory
    view: str

    @property
    def gain(self) -> float:
        """Change of the return (Retroformer, section 4.2: the rating)."""
        return self.attempt.episode_return - self.failure.attempt.episode_return


def optimize(config: Config, *, retries: int | None, proposer: str | None, tokens: int) -> str:
    """Search for the best document, write it to the folder of the run, and return a summary.

    A search that was stopped goes on where it was, and one with more retries goes on from its end. One with other
    failures, another proposer or other settings begins anew.

    It spends as many retries as the collection made, unless a number is given. The proposer is a model at the
    reflector's endpoint, or by default the one that collects: the teacher if there is one. It writes documents of at
    most so many tokens.

    Raises:
        MissingInput: no failed attempts are stored, or no number is given and the collection made no retries.
        InfrastructureFailure: the proposer does not answer, or a retry could not be played.
        RetroformerError: something that the actor needs does not start, or the budget is spent.
    """
    experiment = config.experiment
    check_prompts(experiment)
    folder, played_under = experiment.folder / "gepa", partial(conditions_of_retries, experiment)
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_whole_store(experiment)))
        # Missing failures are reported before anything starts.
        failures = failed_first_attempts(experiment, store)
        retries = retries or sum(row.trial > 0 for row in store.attempt_rows(collect_arm(experiment.round)))
        if not retries:
            raise MissingInput(
                "The collection of this run made no retries: name how many to spend with --retries NUMBER."
            )
        random.Random(experiment.seed).shuffle(failures)
        compared = min(_MOST_COMPARED, len(failures) // 2)
        asks = proposer is not None or experiment.reflector.teacher is None
        play = stack.enter_context(start_retry_player(config, store, DOCUMENT, played_under, asks_reflector=asks))
        model = _Proposer(play, experiment, store, proposer, tokens)
        result: GEPAResult[Retry, int] = evolve(
            seed_candidate={_COMPONENT: START},
            trainset=failures[compared:],
            valset=failures[:compared],
            adapter=_Adapter(play, experiment, store),
            reflection_lm=model,
            reflection_minibatch_size=_RETRIES_PER_PROPOSAL,
            max_metric_calls=retries,
            stop_callbacks=lambda state: model.failure is not None,
            track_best_outputs=False,
            run_dir=str(folder / _name_of_state(failures, model, experiment.seed)),
            seed=experiment.seed,
            # GEPA tells in many lines what the summary tells in one.
            logger=SimpleNamespace(log=lambda message: None),
        )
    if model.failure is not None:
        raise model.failure
    best, scores = cast("dict[str, str]", result.best_candidate)[_COMPONENT], result.val_aggregate_scores
    path = folder / "document.md"
    write_text(path, f"{best}\n")
    return (
        f"optimised: {path} ({len(scores)} documents compared on {compared} failures; mean gain of the "
        f"first {scores[0]:+.3f}, of the best {max(scores):+.3f})"
    )


def failed_first_attempts(experiment: Experiment, store: Store) -> list[FailedTask]:
    """Read the failed first attempts at training tasks, without stories with a mark of `train.leave_out`.

    Raises MissingInput: there are fewer than two.
    """
    render, arm = reflection_renderer(experiment), collect_arm(experiment.round)
    left_out = store.marks.tasks(arm, experiment.train.leave_out)
    failures = [
        FailedTask(attempt, render(attempt, Memory())[-1].content)
        for key, attempt in store.stream_trajectories(arm)
        if key.trial == 0 and attempt.failed and key.task_id not in left_out
    ]
    if len(failures) < 2:
        raise MissingInput(
            f"{len(failures)} failed first attempts are stored, and GEPA needs one to learn from and another to check "
            "by: run `retroformer collect EXPERIMENT.yaml` first."
        )
    return failures


class _Adapter:
    """Adapter of GEPA that scores a document by the gains of retries with it. Each retry is played once and stored."""

    propose_new_texts: ProposalFn | None = None
    """GEPA's own proposal is used."""

    def __init__(self, play: RetryPlayer, experiment: Experiment, store: Store) -> None:
        self._play, self._loop, self._store = play, experiment.loop, store
        self._render = reflection_renderer(experiment)

    def evaluate(
        self, batch: list[FailedTask], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Retry, Retry]:
        """Retry each failure of the batch with the candidate's document.

        Raises:
            InfrastructureFailure: one could not be played; the others are stored.
            BudgetExhausted: the budget of the config is spent.
        """
        retries = self._play.runner.run(self._retries(batch, candidate[_COMPONENT]))
        return EvaluationBatch(retries, [retry.gain for retry in retries], retries if capture_traces else None)

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Retry, Retry],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return what the proposer reads: the failure, the retry, and what came of it."""
        rows = [
            {
                "Inputs": {"Failed attempt": retry.failure.view},
                "Generated Outputs": {"Retry with the document": retry.view},
                "Feedback": "The retry solved the task."
                if retry.attempt.outcome is Outcome.SUCCESS
                else "The retry failed, too.",
            }
            for retry in eval_batch.trajectories or ()
        ]
        return {_COMPONENT: rows}

    async def _retries(self, failures: Sequence[FailedTask], document: str) -> list[Retry]:
        retries: dict[int, Retry] = {}

        async def play(number: int, failure: FailedTask) -> None:
            task = failure.attempt.task
            memory = Memory().remember(
                document, self._loop.memory, failure.attempt, shows_attempt=self._loop.last_attempt
            )
            attempt = await self._play.experience.trajectory(task, memory, self._key(task.id, document))
            retries[number] = Retry(failure, attempt, self._render(attempt, memory)[-1].content)

        await finish_all(play(*item) for item in enumerate(failures))
        if lost := [retry for retry in retries.values() if retry.attempt.outcome is Outcome.INVALID]:
            raise InfrastructureFailure(
                f"{len(lost)} of {len(failures)} retries could not be played: run the same command again to go on. "
                f"The last cause: {lost[-1].attempt.cause}"
            )
        return [retries[number] for number in range(len(failures))]

    def _key(self, task_id: str, document: str) -> Key:
        """Return the key of a retry; store the document as its advice if it is new.

        The candidate number comes from the document's hash, so that a resumed search finds what it has played.
        """
        reflection = Reflection(text=document, prompt=(), author=_AUTHOR)
        first = int(sha256_of({"text": document}), 16)
        keys = (
            Key(arm=DOCUMENT, task_id=task_id, trial=1, candidate=number % _MOST_DOCUMENTS) for number in count(first)
        )
        return next(key for key in keys if self._store.add_reflection(key, 0, reflection).text == document)


class _Proposer:
    """Language model that writes the next document; its usage is charged to the store."""

    def __init__(self, play: RetryPlayer, experiment: Experiment, store: Store, name: str | None, tokens: int) -> None:
        reflector, self._store, self._runner = experiment.reflector, store, play.runner
        endpoint = reflector.endpoint.named(name) if name else reflector.collector
        self._model = play.parts.connections.model(endpoint)
        self._tokens, self._temperature, self._asked = tokens, reflector.temperature, 0
        self.settings = [endpoint.model, play.parts.adapter_sha256.get(endpoint.model), tokens, reflector.temperature]
        """What its documents depend on."""
        self.failure: EndpointFailure | None = None
        """Failure of the endpoint. GEPA would go on without a proposal, for ever, so the search stops for it."""

    def __call__(self, prompt: str | list[dict[str, Any]]) -> str:
        self._asked += 1
        try:
            answer = self._runner.run(
                self._model.complete(
                    (Message(role="user", content=str(prompt)),),
                    temperature=self._temperature,
                    max_new_tokens=self._tokens,
                    seed=self._asked,
                )
            )
        except EndpointFailure as failure:
            self._store.charge(DOCUMENT, usage_of(failure))
            self.failure = failure
            raise
        self._store.charge(DOCUMENT, answer.usage)
        return storable(answer.text)


def _name_of_state(failures: Sequence[FailedTask], proposer: _Proposer, seed: int) -> str:
    """Return the name of the folder with GEPA's state, which differs with everything that the state depends on.

    GEPA keeps scores by the positions of failures, and goes on from whatever state it has.
    """
    state = {
        "failures": [[failure.attempt.task.id, failure.view] for failure in failures],
        "document": START,
        "proposer": proposer.settings,
        "seed": seed,
    }
    return f"search-{sha256_of(state)[:12]}"
