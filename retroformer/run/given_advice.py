"""Retries of stored failures with given advice, for trainers that rate advice by the actor's own play."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from typing import Any, NamedTuple

from retroformer.agents.arms.baselines import NoReflector
from retroformer.config.conditions import conditions
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import Parts, parts
from retroformer.run.attempts import Experience
from retroformer.run.ledger import Ledger
from retroformer.run.provenance import NOT_PROVEN, Proven
from retroformer.run.store import Store


class RetryPlayer(NamedTuple):
    """What plays the retries of one arm."""

    parts: Parts
    experience: Experience
    """Plays and stores each retry once, within the budget of `collect`. Nobody reflects: the advice is given."""
    runner: asyncio.Runner


@contextmanager
def start_retry_player(
    config: Config,
    store: Store,
    arm: str,
    played_under: Callable[[Proven], dict[str, Any]],
    *,
    asks_reflector: bool,
) -> Iterator[RetryPlayer]:
    """Start environments and endpoints, yield what retries under `arm`, and stop everything.

    `played_under` returns the conditions of the retries. Raises RetroformerError if something that the actor needs does
    not start, or if the store has facts of other conditions.
    """
    with closing(Ledger(store)) as ledger, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            built = runner.run(stack.enter_async_context(parts(config, asks_reflector=asks_reflector)))
            store.declare(arm, played_under(built.proven))
            yield RetryPlayer(built, built.experience(ledger, arm, NoReflector()), runner)
        finally:
            runner.run(stack.aclose())


def conditions_of_retries(experiment: Experiment, proven: Proven = NOT_PROVEN) -> dict[str, Any]:
    """Return the conditions of a retry besides the failure and the text; the text's author does not matter."""
    without_reflector = conditions(experiment, proven)
    del without_reflector["reflector"]
    return without_reflector
