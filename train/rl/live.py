"""Live returns: the frozen actor retries with every reflection that the policy generates; the reward is its rating.

Actor, environments, endpoints and loop are those of the experiment, as in collection. Reflections and rollouts are
stored under an arm of their own. Each distinct text on a failure is retried once: a resumed run reuses the rollouts of
a killed one, and equal responses in a group cost one rollout and get equal rewards. With an actor that samples, a text
is retried again in every update, so that one lucky retry has no lasting effect.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from retroformer.arm_names import LIVE
from retroformer.errors import ConfigError, InfrastructureFailure
from retroformer.experience import Experience
from retroformer.experiment.actors import actor_kind
from retroformer.experiment.config import Experiment
from retroformer.experiment.parts import LoadedConfig, check_prompts, gather_all
from retroformer.experiment.retries import conditions_of_retries, retrying
from retroformer.experiment.storage import open_store
from retroformer.experiment.views import reflection_renderer
from retroformer.files.characters import storable
from retroformer.provenance import Provenance
from retroformer.records import Author, Key, Outcome, Reflection, Sampling, Trajectory
from retroformer.secrets.redaction import redacted_data
from retroformer.store import Store
from retroformer.store.text import serialised

from ..base import load_tokenizer
from ..data.failures import Failure
from ..data.samples import Prompt, prompt_ids
from .sampling import Responses

AUTHOR = Author(endpoint="train", model="grpo")
Tried: TypeAlias = tuple[Failure, str]
"""A failure, and the text of a reflection on it."""
Answer: TypeAlias = Callable[[Sequence[list[int]]], Responses]
"""Samples a response of the policy to each prompt."""


@contextmanager
def live_returns(config: LoadedConfig, failures: Sequence[Failure]) -> Iterator["LiveReturns"]:
    """Start environments and endpoints, yield the rewards of reflections on `failures`, and stop everything.

    Raises:
        RetroformerError: something that the actor needs does not start, or the store has facts of other conditions.
    """
    experiment = config.experiment
    check_prompts(experiment)
    played_under = partial(conditions_of_play, experiment)
    with (
        closing(open_store(experiment)) as store,
        # Reflections come from the policy.
        retrying(config, store, LIVE, played_under, asks_reflector=False) as play,
    ):
        yield LiveReturns(experiment, store, play.experience, play.runner, failures)


def conditions_of_play(experiment: Experiment, provenance: Provenance | None = None) -> dict[str, Any]:
    """Return the conditions of a rollout besides the failure and the text."""
    return conditions_of_retries(experiment, provenance) | {"repeats": experiment.collect.repeats}


def conditions_of_returns(experiment: Experiment) -> dict[str, Any]:
    """Return the conditions of a response's reward besides the failure: those of a rollout, and the stop words."""
    stop = experiment.reflector.stop
    return conditions_of_play(experiment) | ({"stop": stop} if stop else {})


def check_second_retry(experiment: Experiment) -> None:
    """Raise ConfigError if second retries are asked for where a reflection is retried several times."""
    if experiment.train.grpo.second_retry and (_actor_samples(experiment) or experiment.collect.repeats > 1):
        raise ConfigError(
            "train.grpo.second_retry follows the only retry of a reflection, and actor.temperature above 0 or "
            "collect.repeats makes several: set these to 0 and 1, or leave second_retry out."
        )


def _actor_samples(experiment: Experiment) -> bool:
    return experiment.actor.temperature > 0 and actor_kind(experiment).asks_model


class LiveReturns:
    """Rewards responses by the change of the actor's return (Retroformer, section 4.3: the rating).

    With `train.grpo.second_retry`, a retry that fails is followed by another, with advice of the policy on the second
    failure, whose gain counts that much. It is 0 where the prompt about that failure exceeds train.max_length.
    """

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
        self._actor_samples = _actor_samples(experiment)
        self._tokenizer, self._render = load_tokenizer(experiment.train), reflection_renderer(experiment)
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
        self.answer: Answer | None = None
        """Samples the policy's advice on second failures; None: there are no second retries."""

    def __call__(self, update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """Return the rating of each response, (B,); `nan` if the infrastructure failed in all `loop.retries` retries.

        Raises:
            InfrastructureFailure: no reflection could be tried.
            BudgetExhausted: the budget of collect.tokens or collect.dollars is spent; finished rollouts are stored.
        """
        tried = [(self._failures[number], text) for number, text in zip(asked, self.texts(responses), strict=True)]
        retries = self._try(update, tried)
        gains = [played.gain for played in retries]
        if (discount := self._experiment.train.grpo.second_retry) and self.answer is not None:
            seconds = self._second_gains(update, tried, retries, self.answer)
            gains = [gain + discount * seconds.get(first.key, 0.0) for gain, first in zip(gains, retries, strict=True)]
        if all(math.isnan(gain) for gain in gains):
            distinct = len(dict.fromkeys(played.key for played in retries))
            raise InfrastructureFailure(
                f"None of the {distinct} reflections of update {update + 1} could be rated: run the same command again "
                f"to resume. The last cause: {self._store.last_cause(LIVE)}"
            )
        return torch.tensor(gains)

    def texts(self, responses: Responses) -> list[str]:
        """Decode the responses as a server does, without special tokens and cut at the first stop word."""
        decode = self._tokenizer.backend_tokenizer.decode
        texts = [decode(tokens, skip_special_tokens=True) for tokens in responses.tokens]
        for stop in self._experiment.reflector.stop:
            texts = [text.partition(stop)[0] for text in texts]
        # In the form in which the store keeps texts, since stored texts are looked up by content.
        return [redacted_data(storable(text.strip())) for text in texts]

    def _second_gains(
        self, update: int, tried: Sequence[Tried], retries: Sequence["_Retries"], answer: Answer
    ) -> dict[Key, float]:
        """Return the gain of the second retry after each first one that failed, by the first one's key.

        It is `nan` if the infrastructure failed, so that the response has no reward.
        """
        room = self._experiment.train.max_length - self._experiment.reflector.max_new_tokens
        failed, prompts = dict[Key, Failure](), dict[Key, list[int]]()
        for (failure, text), first in zip(tried, retries, strict=True):
            retry = first.attempts[0]
            if first.key in failed or not retry.failed or failure.trial + 1 >= self._experiment.loop.trials:
                continue
            memory = failure.advised(text, self._experiment.loop)
            prompt = self._render(retry, memory)
            if len(ids := prompt_ids(self._tokenizer, prompt)) <= room:
                failed[first.key] = Failure(retry, memory, failure.trial + 1, first.key.candidate, prompt)
                prompts[first.key] = ids
        if not failed:
            return {}
        texts = self.texts(answer(list(prompts.values())))
        seconds = self._try(update, list(zip(failed.values(), texts, strict=True)))
        return {key: second.gain for key, second in zip(failed, seconds, strict=True)}

    def _try(self, update: int, tried: Sequence[Tried]) -> list["_Retries"]:
        """Retry with each of these reflections; equal ones on a failure share their rollouts."""
        # Keys are made first, so that texts are numbered in sampling order, the same in every run.
        keys = [self._keys(failure, text, update) for failure, text in tried]
        distinct = {own[0]: (own, *advised) for own, advised in zip(keys, tried, strict=True)}
        played = self._runner.run(self._play(distinct.values()))
        return [played[own[0]] for own in keys]

    async def _play(self, distinct: Iterable[tuple[Sequence[Key], Failure, str]]) -> dict[Key, "_Retries"]:
        retries: dict[Key, _Retries] = {}

        async def play(keys: Sequence[Key], failure: Failure, text: str) -> None:
            memory, task = failure.advised(text, self._experiment.loop), failure.attempt.task
            attempts = await asyncio.gather(*(self._experience.trajectory(task, memory, key) for key in keys))
            retries[keys[0]] = _Retries(keys[0], attempts, failure.attempt.episode_return)

        await gather_all([asyncio.create_task(play(*retry)) for retry in distinct])
        return retries

    def _keys(self, failure: Failure, text: str, update: int) -> list[Key]:
        """Return the key of each rollout of a text on a failure; store the text first if it is new."""
        repeats = self._experiment.collect.repeats
        first = update * repeats if self._actor_samples else 0
        task_id = failure.attempt.task.id
        key = Key(arm=LIVE, task_id=task_id, trial=failure.trial, candidate=self._number(failure, text))
        return [key.model_copy(update={"repeat": first + repeat}) for repeat in range(repeats)]

    def _number(self, failure: Failure, text: str) -> int:
        """Return the candidate number of a text on a failure; store the text under the next number if it is new."""
        task_id, trial = failure.attempt.task.id, failure.trial
        sampling = Sampling(temperature=1.0, max_new_tokens=self._experiment.reflector.max_new_tokens)
        reflection = Reflection(text=text, prompt=failure.prompt, author=AUTHOR, sampling=sampling)
        reflection, _ = serialised(reflection)  # As the store keeps it, to be compared with what is stored.
        numbers = self._numbers.setdefault((task_id, trial, failure.accepted, reflection.prompt), {})
        # Another process on the same store may have used a number for another text, or about another failure.
        while reflection.text not in numbers:
            key = Key(arm=LIVE, task_id=task_id, trial=trial, candidate=self._used[task_id, trial])
            stored = self._store.add_reflection(key, failure.accepted, reflection)
            if stored.prompt == reflection.prompt:
                numbers[stored.text] = key.candidate
            self._used[task_id, trial] += 1
        return numbers[reflection.text]


class _Retries(NamedTuple):
    """The retries with a reflection."""

    key: Key
    """Key of the first."""
    attempts: Sequence[Trajectory]
    return_before: float

    @property
    def gain(self) -> float:
        """Change of the return, a mean over the repeats; `nan` if the infrastructure failed."""
        if any(attempt.outcome is Outcome.INVALID for attempt in self.attempts):
            return math.nan
        return fmean(attempt.episode_return for attempt in self.attempts) - self.return_before
