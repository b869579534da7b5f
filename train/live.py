"""Live returns: every reflection that the policy writes in training is tried by the frozen actor, and earns its rating.

The experiment's own actor, environments, endpoints and loop play, as in collecting. A reflection and its rollouts are
facts under an arm of their own, numbered by text within a failure, so a text is tried once, whatever wrote it: a
killed run finds what it has paid for, a group that says the same thing eight times costs one rollout, and its rewards
are equal. An actor that samples tries a text anew in every update: one lucky attempt must not be learned for ever.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from retroformer.arms import LIVE
from retroformer.assembly import Page, check_prompts, gather_all, parts
from retroformer.conditions import conditions
from retroformer.config import Experiment
from retroformer.errors import InfrastructureFailure
from retroformer.experience import Budget, Experience
from retroformer.ledger import Ledger
from retroformer.provenance import Provenance
from retroformer.records import Author, Key, Outcome, Reflection, Sampling
from retroformer.reflectors.baseline import NoReflector
from retroformer.store import Store, open_store
from retroformer.store.text import clean
from train.base import load_tokenizer
from train.failures import Failure
from train.sampling import Responses

AUTHOR = Author(endpoint="train", model="grpo")


@contextmanager
def live_returns(page: Page, failures: Sequence[Failure]) -> Iterator["LiveReturns"]:
    """What rewards reflections on `failures`, with environments and endpoints that stop at the end.

    Raises:
        RetroformerError: what the actor needs could not be started, or the store holds facts of other conditions.
    """
    experiment = page.experiment
    check_prompts(experiment)
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            made = runner.run(stack.enter_async_context(parts(page, asks_reflector=False)))
            store.declare(LIVE, conditions_of_play(experiment, made.provenance))
            experience = Experience(
                ledger,
                LIVE,
                made.pool,
                made.agent(NoReflector()),  # Reflections come from the policy.
                experiment.loop,
                experiment.seed,
                Budget(experiment.collect, lambda: store.usage(LIVE)),
                slots=asyncio.Semaphore(experiment.loop.concurrency),
            )
            yield LiveReturns(experiment, store, experience, runner, failures)
        finally:
            runner.run(stack.aclose())


def conditions_of_play(experiment: Experiment, provenance: Provenance | None = None) -> dict[str, Any]:
    """What a rollout depends on besides the failure and the text; who wrote the text does not matter."""
    known = conditions(experiment, provenance)
    del known["reflector"]
    return known | {"repeats": experiment.collect.repeats}


def conditions_of_returns(experiment: Experiment) -> dict[str, Any]:
    """What the reward of a response depends on besides the failure: a rollout's conditions, and where texts are cut."""
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
        self._numbers: dict[tuple[str, int], dict[str, int]] = {}
        """Of the texts that were tried on a failure, by task and trial."""
        for stored in store.stream_reflections(LIVE):
            texts = self._numbers.setdefault((stored.key.task_id, stored.key.trial), {})
            texts[stored.reflection.text] = stored.key.candidate

    def __call__(self, update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """The rating of each response, (B,); `nan` where the infrastructure failed `loop.retries` times over.

        Raises:
            InfrastructureFailure: not one reflection could be tried.
            BudgetExhausted: what collect.tokens or collect.dollars allow is spent; what was played is stored.
        """
        said = list(zip(asked, self.texts(responses), strict=True))
        ratings = self._runner.run(self._ratings(update, list(dict.fromkeys(said))))
        if all(rating is None for rating in ratings.values()):
            raise InfrastructureFailure(
                f"None of the {len(ratings)} reflections of update {update + 1} could be tried: run the same command "
                f"again to go on. The last cause: {self._store.last_cause(LIVE)}"
            )
        found = (ratings[one] for one in said)
        return torch.tensor([torch.nan if rating is None else rating for rating in found])

    def texts(self, responses: Responses) -> list[str]:
        """What the actor is told: the words as the server would give them, without special tokens, up to a stop."""
        decode = self._tokenizer.backend_tokenizer.decode
        texts = [decode(tokens, skip_special_tokens=True) for tokens in responses.tokens]
        for stop in self._experiment.reflector.stop:
            texts = [text.partition(stop)[0] for text in texts]
        # As the store keeps them: a text is found again by its words.
        return [clean(text.strip()) for text in texts]

    async def _ratings(self, update: int, said: Sequence[tuple[int, str]]) -> dict[tuple[int, str], float | None]:
        ratings: dict[tuple[int, str], float | None] = {}

        async def rate(one: tuple[int, str], keys: Sequence[Key]) -> None:
            failure = self._failures[one[0]]
            ratings[one] = await self._rating(failure, failure.advised(one[1], self._experiment.loop), keys)

        # Texts get their numbers in the order in which they were drawn, the same in every run.
        keys = [self._keys(self._failures[number], text, update) for number, text in said]
        await gather_all([asyncio.create_task(rate(*work)) for work in zip(said, keys, strict=True)])
        return ratings

    async def _rating(self, failure: Failure, memory: Any, keys: Sequence[Key]) -> float | None:
        play = self._experience.trajectory
        retries = await asyncio.gather(*(play(failure.attempt.task, memory, key) for key in keys))
        if any(retry.outcome is Outcome.INVALID for retry in retries):
            return None
        return fmean(retry.episode_return for retry in retries) - failure.attempt.episode_return

    def _keys(self, failure: Failure, text: str, update: int) -> list[Key]:
        """One for each rollout of a text on a failure; the text is stored first, if it is a new one."""
        actor, repeats = self._experiment.actor, self._experiment.collect.repeats
        first = update * repeats if actor.kind != "rule" and actor.temperature > 0 else 0
        task_id = failure.attempt.task.id
        key = Key(arm=LIVE, task_id=task_id, trial=failure.trial, candidate=self._number(failure, text))
        return [key.model_copy(update={"repeat": first + repeat}) for repeat in range(repeats)]

    def _number(self, failure: Failure, text: str) -> int:
        known = self._numbers.setdefault((failure.attempt.task.id, failure.trial), {})
        drawn = Sampling(temperature=1.0, max_new_tokens=self._experiment.reflector.max_new_tokens)
        written = Reflection(text=text, prompt=failure.prompt, author=AUTHOR, sampling=drawn)
        # Another process on the same store may have taken a number for a text of its own.
        free = itertools.count(len(known))
        while text not in known:
            key = Key(arm=LIVE, task_id=failure.attempt.task.id, trial=failure.trial, candidate=next(free))
            known[self._store.add_reflection(key, failure.accepted, written).text] = key.candidate
        return known[text]
