"""Live returns: the frozen actor retries with every reflection that the policy generates; the reward is its rating.

Actor, environments, endpoints and loop are those of the experiment, as in collection. Reflections and rollouts are
stored under an arm of their own. Each distinct text on a failure is retried once: a resumed run reuses the rollouts of
a killed one, and equal responses in a group cost one rollout and get equal rewards. With an actor that samples, a text
is retried again in every update, so that one lucky retry has no lasting effect.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from statistics import fmean
from typing import Any, TypeAlias

import torch
from torch import Tensor

from retroformer.agents.baseline import NoReflector
from retroformer.arm_names import LIVE
from retroformer.errors import InfrastructureFailure
from retroformer.experience import Budget, Experience
from retroformer.experiment.actors import actor_kind
from retroformer.experiment.conditions import conditions
from retroformer.experiment.config import Experiment
from retroformer.experiment.parts import LoadedConfig, check_prompts, gather_all, parts
from retroformer.experiment.storage import open_store
from retroformer.files.characters import storable
from retroformer.ledger import Ledger
from retroformer.provenance import Provenance
from retroformer.records import Author, Key, Outcome, Reflection, Sampling
from retroformer.store import Store

from ..base import load_tokenizer
from ..data.failures import Failure
from .sampling import Responses

AUTHOR = Author(endpoint="train", model="grpo")
TEXTS_OF_A_FAILURE = 2**16
"""Candidate numbers of each failure, so that two failures of one trial never share any."""
Tried: TypeAlias = tuple[int, str]
"""The number of a failure, and the text of a reflection on it."""


@contextmanager
def live_returns(config: LoadedConfig, failures: Sequence[Failure]) -> Iterator["LiveReturns"]:
    """Start environments and endpoints, yield the rewards of reflections on `failures`, and stop everything.

    Raises:
        RetroformerError: something that the actor needs does not start, or the store has facts of other conditions.
    """
    experiment = config.experiment
    check_prompts(experiment)
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            built = runner.run(stack.enter_async_context(parts(config, asks_reflector=False)))
            store.declare(LIVE, conditions_of_play(experiment, built.provenance))
            experience = Experience(
                ledger,
                LIVE,
                built.pool,
                built.agent(NoReflector()),  # Reflections come from the policy.
                experiment.loop,
                experiment.seed,
                Budget(experiment.collect, lambda: store.usage(LIVE)),
                slots=asyncio.Semaphore(experiment.loop.concurrency),
            )
            yield LiveReturns(experiment, store, experience, runner, failures)
        finally:
            runner.run(stack.aclose())


def conditions_of_play(experiment: Experiment, provenance: Provenance | None = None) -> dict[str, Any]:
    """Return the conditions of a rollout besides the failure and the text; the text's author does not matter."""
    without_reflector = conditions(experiment, provenance)
    del without_reflector["reflector"]
    return without_reflector | {"repeats": experiment.collect.repeats}


def conditions_of_returns(experiment: Experiment) -> dict[str, Any]:
    """Return the conditions of a response's reward besides the failure: those of a rollout, and the stop words."""
    stop = experiment.reflector.stop
    return conditions_of_play(experiment) | ({"stop": stop} if stop else {})


class LiveReturns:
    """Rewards responses by the change of the actor's return (Retroformer, section 4.3: the rating)."""

    def __init__(
        self,
        experiment: Experiment,
        store: Store,
        experience: Experience,
        runner: asyncio.Runner,
        failures: Sequence[Failure],
    ) -> None:
        self._experiment, self._store, self._experience = experiment, store, experience
        self._runner, self._failures = runner, failures
        self._tokenizer = load_tokenizer(experiment.train)
        self._numbers: dict[tuple[str, int, int], dict[str, int]] = {}
        """Candidate numbers of the texts that were tried on a failure, by task, trial and candidate of the failure."""
        for stored in store.stream_reflections(LIVE):
            failure = (stored.key.task_id, stored.key.trial, stored.previous_candidate)
            self._numbers.setdefault(failure, {})[stored.reflection.text] = stored.key.candidate

    def __call__(self, update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """Return the rating of each response, (B,); `nan` if the infrastructure failed in all `loop.retries` retries.

        Raises:
            InfrastructureFailure: no reflection could be tried.
            BudgetExhausted: the budget of collect.tokens or collect.dollars is spent; finished rollouts are stored.
        """
        reflections = list(zip(asked, self.texts(responses), strict=True))
        ratings = self._runner.run(self._ratings(update, list(dict.fromkeys(reflections))))
        if all(rating is None for rating in ratings.values()):
            raise InfrastructureFailure(
                f"None of the {len(ratings)} reflections of update {update + 1} could be tried: run the same command "
                f"again to resume. The last cause: {self._store.last_cause(LIVE)}"
            )
        in_order = (ratings[reflection] for reflection in reflections)
        return torch.tensor([torch.nan if rating is None else rating for rating in in_order])

    def texts(self, responses: Responses) -> list[str]:
        """Decode the responses as a server does, without special tokens and cut at the first stop word."""
        decode = self._tokenizer.backend_tokenizer.decode
        texts = [decode(tokens, skip_special_tokens=True) for tokens in responses.tokens]
        for stop in self._experiment.reflector.stop:
            texts = [text.partition(stop)[0] for text in texts]
        # In the form in which the store keeps texts, since stored texts are looked up by content.
        return [storable(text.strip()) for text in texts]

    async def _ratings(self, update: int, reflections: Sequence[Tried]) -> dict[Tried, float | None]:
        ratings: dict[Tried, float | None] = {}

        async def rate(number: int, text: str, keys: Sequence[Key]) -> None:
            failure = self._failures[number]
            ratings[number, text] = await self._rating(failure, failure.advised(text, self._experiment.loop), keys)

        # Keys are made first, so that texts are numbered in sampling order, the same in every run.
        keys = [self._keys(self._failures[number], text, update) for number, text in reflections]
        retries = (rate(*reflection, own_keys) for reflection, own_keys in zip(reflections, keys, strict=True))
        await gather_all([asyncio.create_task(retry) for retry in retries])
        return ratings

    async def _rating(self, failure: Failure, memory: Any, keys: Sequence[Key]) -> float | None:
        play = self._experience.trajectory
        retries = await asyncio.gather(*(play(failure.attempt.task, memory, key) for key in keys))
        if any(retry.outcome is Outcome.INVALID for retry in retries):
            return None
        return fmean(retry.episode_return for retry in retries) - failure.attempt.episode_return

    def _keys(self, failure: Failure, text: str, update: int) -> list[Key]:
        """Return the key of each rollout of a text on a failure; store the text first if it is new."""
        repeats = self._experiment.collect.repeats
        actor_samples = self._experiment.actor.temperature > 0 and actor_kind(self._experiment).asks_model
        first = update * repeats if actor_samples else 0
        task_id = failure.attempt.task.id
        key = Key(arm=LIVE, task_id=task_id, trial=failure.trial, candidate=self._number(failure, text))
        return [key.model_copy(update={"repeat": first + repeat}) for repeat in range(repeats)]

    def _number(self, failure: Failure, text: str) -> int:
        """Return the candidate number of a text on a failure; store the text under the next number if it is new."""
        numbers = self._numbers.setdefault((failure.attempt.task.id, failure.trial, failure.accepted), {})
        sampling = Sampling(temperature=1.0, max_new_tokens=self._experiment.reflector.max_new_tokens)
        reflection = Reflection(text=text, prompt=failure.prompt, author=AUTHOR, sampling=sampling)
        # Another process on the same store may have used a number for another text.
        free = itertools.count(failure.accepted * TEXTS_OF_A_FAILURE + len(numbers))
        while text not in numbers:
            key = Key(arm=LIVE, task_id=failure.attempt.task.id, trial=failure.trial, candidate=next(free))
            numbers[self._store.add_reflection(key, failure.accepted, reflection).text] = key.candidate
        return numbers[text]
