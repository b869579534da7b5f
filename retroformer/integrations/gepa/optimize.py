"""The search: GEPA proposes documents, and the actor's retries rate them."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple, cast

from gepa.api import optimize as evolve
from gepa.core.adapter import EvaluationBatch, ProposalFn
from gepa.core.result import GEPAResult

from retroformer.config.arm_names import DOCUMENT
from retroformer.config.experiment import Experiment
from retroformer.config.given_advice import conditions_of_retries, retrying
from retroformer.config.parts import LoadedConfig, Parts, check_prompts
from retroformer.config.storage import open_whole_store
from retroformer.endpoint.model import LanguageModel
from retroformer.errors import EndpointFailure, usage_of
from retroformer.files.durable import write_text
from retroformer.files.text import sha256_of, storable
from retroformer.integrations.gepa.retries import FailedFirst, Retries, Retry, collected_retries, failed_first_attempts
from retroformer.method.records import Message, Outcome
from retroformer.run.store import Store

START = "Search the places that were not searched yet, and do not repeat what failed."
"""Document that the search starts from."""
_COMPONENT = "document"
_CHECKED = 40
"""Largest number of failures by which documents are compared; the others show what to improve."""
_SHOWN_AT_ONCE = 3
"""Number of retries that one proposal is made from."""


class Search(NamedTuple):
    """Settings of a search."""

    retries: int | None
    """Number of retries to spend; None: as many as the collection of this run made."""
    proposer: str | None
    """Model at the reflector's endpoint; None: the reflector."""
    tokens: int
    """Most tokens of a document."""


def optimize(config: LoadedConfig, search: Search) -> str:
    """Search for the best document, write it to the folder of the run, and return a summary.

    A search that was stopped goes on where it was, and one with more retries goes on from its end. One with other
    failures, another proposer or other settings begins anew.

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
        retries = search.retries or collected_retries(experiment, store)
        random.Random(experiment.seed).shuffle(failures)
        checked = min(_CHECKED, len(failures) // 2)
        play = stack.enter_context(retrying(config, store, DOCUMENT, played_under, asks_reflector=True))
        model = play.parts.connections.model(experiment.reflector.endpoint, search.proposer)
        proposer = _Proposer(model, store, play.runner, search.tokens, experiment.reflector.temperature)
        result: GEPAResult[Retry, int] = evolve(
            seed_candidate={_COMPONENT: START},
            trainset=failures[checked:],
            valset=failures[:checked],
            adapter=_Adapter(Retries(experiment, store, play.experience, play.runner)),
            reflection_lm=proposer,
            reflection_minibatch_size=_SHOWN_AT_ONCE,
            max_metric_calls=retries,
            stop_callbacks=lambda state: proposer.failure is not None,
            track_best_outputs=False,
            run_dir=str(folder / _name_of_state(experiment, search, failures, play.parts)),
            seed=experiment.seed,
            logger=_Silent(),
        )
    if proposer.failure is not None:
        raise proposer.failure
    best, scores = cast("dict[str, str]", result.best_candidate)[_COMPONENT], result.val_aggregate_scores
    path = folder / "document.md"
    write_text(path, f"{best}\n")
    return (
        f"optimised: {path} ({len(scores)} documents compared on {checked} failures; mean gain of the "
        f"first {scores[0]:+.3f}, of the best {max(scores):+.3f})"
    )


def _name_of_state(experiment: Experiment, search: Search, failures: Sequence[FailedFirst], served: Parts) -> str:
    """Return the name of the folder with GEPA's state, which differs with everything that the state depends on.

    GEPA keeps scores by the positions of failures, and goes on from whatever state it has.
    """
    proposer = search.proposer or experiment.reflector.endpoint.model
    started_with = {
        "failures": [[failure.attempt.task.id, failure.view] for failure in failures],
        "document": START,
        "proposer": [
            proposer,
            served.adapter_sha256.get(proposer),
            search.tokens,
            experiment.reflector.temperature,
        ],
        "seed": experiment.seed,
    }
    return f"search-{sha256_of(started_with)[:12]}"


class _Adapter:
    """GEPA's view of retries: the gain is a document's score on a failure."""

    propose_new_texts: ProposalFn | None = None
    """GEPA's own proposal is used."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries

    def evaluate(
        self, batch: list[FailedFirst], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Retry, Retry]:
        """Retry each failure of the batch with the candidate's document."""
        retries = self._retries(batch, candidate[_COMPONENT])
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


class _Proposer:
    """Language model that writes the next document; its usage is charged to the store."""

    def __init__(
        self, model: LanguageModel, store: Store, runner: asyncio.Runner, tokens: int, temperature: float
    ) -> None:
        self._model, self._store, self._runner = model, store, runner
        self._tokens, self._temperature, self._asked = tokens, temperature, 0
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


class _Silent:
    """GEPA's log, which tells in many lines what the summary tells in one."""

    def log(self, message: str) -> None:
        pass
