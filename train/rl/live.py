"""Live returns: the frozen actor retries with every reflection that the policy generates; the reward is its rating.

Actor, environments, endpoints and loop are those of the experiment, as in collection. Reflections and rollouts are
stored under an arm of their own. Each distinct text on a failure is retried once: a resumed run reuses the rollouts of
a killed one, and equal responses in a group cost one rollout and get equal rewards. With an actor that samples, a text
is retried again in every update, so that one lucky retry has no lasting effect.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from retroformer.agents.actors import actor_kind
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import check_prompts
from retroformer.endpoint.secrets.redaction import redact_data
from retroformer.errors import InfrastructureFailure
from retroformer.files.text import storable
from retroformer.method.records import Author, Key, Outcome, Reflection, Sampling
from retroformer.method.rollout import finish_all
from retroformer.run.arm_names import LIVE
from retroformer.run.attempts import Experience
from retroformer.run.given_advice import conditions_of_retries, start_retry_player
from retroformer.run.provenance import NOT_PROVEN, Proven
from retroformer.run.store import Store, open_whole_store
from retroformer.run.store.rows import serialise

from ..base import load_tokenizer
from ..data.failures import Failure
from ..data.samples import Prompt
from .sampling import Responses

AUTHOR = Author(endpoint="train", model="grpo")


@contextmanager
def live_returns(config: Config, failures: Sequence[Failure]) -> Iterator["LiveReturns"]:
    """Start environments and endpoints, yield the rewards of reflections on `failures`, and stop everything.

    Raises:
        RetroformerError: something that the actor needs does not start, or the store has facts of other conditions.
    """
    experiment = config.experiment
    check_prompts(experiment)
    played_under = partial(conditions_of_play, experiment)
    with (
        closing(open_whole_store(experiment)) as store,
        # Reflections come from the policy.
        start_retry_player(config, store, LIVE, played_under, asks_reflector=False) as play,
    ):
        yield LiveReturns(experiment, store, play.experience, play.runner, failures)


def conditions_of_play(experiment: Experiment, proven: Proven = NOT_PROVEN) -> dict[str, Any]:
    """Return the conditions of a rollout besides the failure and the text."""
    return conditions_of_retries(experiment, proven) | {"repeats": experiment.collect.repeats}


def conditions_of_returns(experiment: Experiment) -> dict[str, Any]:
    """Return the conditions of a response's reward besides the failure: those of a rollout, and the stop words."""
    stop = experiment.reflector.stop
    return conditions_of_play(experiment) | ({"stop": stop} if stop else {})


class LiveReturns:
    """Rewards responses by the change of the actor's return (Retroformer, section 4.2: the rating)."""

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
        self._actor_samples = experiment.actor.temperature > 0 and actor_kind(experiment).asks_model
        self._tokenizer = load_tokenizer(experiment.train)
        self._numbers: dict[tuple[str, int, int, Prompt], dict[str, int]] = {}
        """Candidate numbers of the texts that were tried on a failure, by task, trial and candidate of the failure, and
        by the prompt about it: failures of several arms share the numbers of their candidates."""
        self._used = Counter[tuple[str, int]]()
        """How many candidate numbers of a task and trial are taken."""
        for stored in store.stream_reflections(LIVE):
            task_id, trial = stored.key.task_id, stored.key.trial
            failure = (task_id, trial, stored.previous_candidate, stored.reflection.prompt)
            self._numbers.setdefault(failure, {})[stored.reflection.text] = stored.key.candidate
            self._used[task_id, trial] += 1

    def __call__(self, update: int, indices: Sequence[int], responses: Responses) -> Tensor:
        """Return the rating of each response, (B,); `nan` if the infrastructure failed in all `loop.retries` retries.

        Raises:
            InfrastructureFailure: no reflection could be tried.
            BudgetExhausted: the budget of collect.tokens or collect.dollars is spent; finished rollouts are stored.
        """
        tried = [(self._failures[number], text) for number, text in zip(indices, self.texts(responses), strict=True)]
        # Keys are made first, so that texts are numbered in sampling order, the same in every run.
        keys = [self._keys(failure, text, update) for failure, text in tried]
        # Equal texts on a failure share their rollouts.
        distinct = {own[0]: (own, *advised) for own, advised in zip(keys, tried, strict=True)}
        gains = self._runner.run(self._play(distinct.values()))
        if all(map(math.isnan, gains.values())):
            raise InfrastructureFailure(
                f"None of the {len(gains)} reflections of update {update + 1} could be rated: run the same command "
                f"again to resume. The last cause: {self._store.last_cause(LIVE)}"
            )
        return torch.tensor([gains[own[0]] for own in keys])

    def texts(self, responses: Responses) -> list[str]:
        """Decode the responses as a server does, without special tokens and cut at the first stop word."""
        decode = self._tokenizer.backend_tokenizer.decode
        texts = [decode(tokens, skip_special_tokens=True) for tokens in responses.tokens]
        for stop in self._experiment.reflector.stop:
            texts = [text.partition(stop)[0] for text in texts]
        # In the form in which the store keeps texts, since stored texts are looked up by content.
        return [redact_data(storable(text.strip())) for text in texts]

    async def _play(self, distinct: Iterable[tuple[Sequence[Key], Failure, str]]) -> dict[Key, float]:
        """Return how each text changes the return, a mean over the repeats, by its first key; `nan` if one fails."""
        gains: dict[Key, float] = {}

        async def play(keys: Sequence[Key], failure: Failure, text: str) -> None:
            memory, before = failure.advised(text, self._experiment.loop), failure.attempt
            attempts = await asyncio.gather(*(self._experience.trajectory(before.task, memory, key) for key in keys))
            failed = any(attempt.outcome is Outcome.INVALID for attempt in attempts)
            after = math.nan if failed else fmean(attempt.episode_return for attempt in attempts)
            gains[keys[0]] = after - before.episode_return

        await finish_all(play(*retry) for retry in distinct)
        return gains

    def _keys(self, failure: Failure, text: str, update: int) -> list[Key]:
        """Return the key of each rollout of a text on a failure; store the text first if it is new."""
        repeats = self._experiment.collect.repeats
        first = update * repeats if self._actor_samples else 0
        task_id = failure.attempt.task.key
        key = Key(arm=LIVE, task_id=task_id, trial=failure.trial, candidate=self._number(failure, text))
        return [key.model_copy(update={"repeat": first + repeat}) for repeat in range(repeats)]

    def _number(self, failure: Failure, text: str) -> int:
        """Return the candidate number of a text on a failure; store the text under the next number if it is new."""
        task_id, trial = failure.attempt.task.key, failure.trial
        sampling = Sampling(temperature=1.0, max_new_tokens=self._experiment.reflector.max_new_tokens)
        reflection = Reflection(text=text, prompt=failure.prompt, author=AUTHOR, sampling=sampling)
        reflection, _ = serialise(reflection)  # As the store keeps it, to be compared with what is stored.
        numbers = self._numbers.setdefault((task_id, trial, failure.accepted, reflection.prompt), {})
        # Another process on the same store may have used a number for another text, or about another failure.
        while reflection.text not in numbers:
            key = Key(arm=LIVE, task_id=task_id, trial=trial, candidate=self._used[task_id, trial])
            stored = self._store.add_reflection(key, failure.accepted, reflection)
            if stored.prompt == reflection.prompt:
                numbers[stored.text] = key.candidate
            self._used[task_id, trial] += 1
        return numbers[reflection.text]
