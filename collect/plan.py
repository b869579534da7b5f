"""The plan that `retroformer collect EXPERIMENT.yaml --dry-run` prints: the work left and its maximum cost."""

import math
from collections.abc import Sequence
from contextlib import closing
from statistics import NormalDist

from retroformer.agents.actors import actor_kind
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import check_prompts
from retroformer.config.sections.base import Endpoint
from retroformer.method.records import Task
from retroformer.run.arm_names import collect_arm
from retroformer.run.store import Store, open_store
from retroformer.run.store.rows import ArmCounts

from .tasks import tasks_of_round

DIFFERENCE, LEVEL, POWER = 0.1, 0.05, 0.8
"""Difference of two shares of solved retries that a collection should be able to show, and the test of it."""
_CALL_TOKENS = (1500, 60)
"""Assumed prompt and completion tokens of a model call before any has been measured."""


def describe_plan(config: Config) -> str:
    """Return the plan without calling a model or storing anything.

    The figures are upper bounds: they assume that every trial fails and uses every step.
    """
    experiment = config.experiment
    tasks = tasks_of_round(experiment)
    check_prompts(experiment)
    stored, means = ArmCounts(), list[tuple[float, float] | None]([None, None])
    if experiment.has_store:  # A store that does not exist yet is not created.
        with closing(open_store(experiment)) as store:
            arm = collect_arm(experiment.round)
            stored, means = store.arm_counts()[arm], store.mean_tokens(arm)
            power = power_of_retries(experiment, store, tasks)
    else:
        power = power_of_retries(experiment, None, tasks)
    retried = experiment.collect.most_retries(experiment.loop.trials)
    rollouts = len(tasks) * (1 + retried * experiment.collect.repeats)
    to_play, to_write = max(0, rollouts - stored.attempts), max(0, len(tasks) * retried - stored.advice)
    actor = experiment.actor.endpoint if actor_kind(experiment).asks_model else None
    writer, role = experiment.reflector.collector, "teacher" if experiment.reflector.teacher else "reflector"
    of_attempt, of_advice = means
    played, written = of_attempt or _guess(experiment.loop.actions if actor else 0), of_advice or _guess(1)
    return "\n".join(
        [
            f"{len(tasks)} tasks of split {experiment.environment.split!r}; the store holds {stored.attempts} rollouts "
            f"and {stored.advice} reflections of this round.",
            f"At most {to_play} more rollouts and {to_write} more reflections (every trial fails).",
            _cost("actor", to_play, played, actor, measured=bool(stored.attempts)),
            _cost(role, to_write, written, writer, measured=bool(stored.advice)),
            *([power] if power else []),
        ]
    )


def power_of_retries(experiment: Experiment, store: Store | None, tasks: Sequence[Task]) -> str:
    """Return a sentence if the retries of first failures are too few to compare two reflectors by; else "".

    Two shares of solved retries are compared by the normal approximation, at the share 1/2, where most are needed.
    Tasks that have not been attempted are expected to fail as often as those that have, or always if none has.
    """
    chosen = {task.id for task in tasks}
    rows = store.attempt_rows(collect_arm(experiment.round)) if store is not None else ()
    first = [row.failed for row in rows if row.trial == 0 and row.task_id in chosen]
    failures = len(tasks) * (sum(first) / len(first) if first else 1.0)
    retries = round(failures * experiment.collect.retries_per_failure * experiment.collect.repeats)
    normal, variance = NormalDist(), 0.5
    limit = normal.inv_cdf(1 - LEVEL / 2)
    needed = math.ceil(variance * ((limit + normal.inv_cdf(POWER)) / DIFFERENCE) ** 2)
    if retries >= needed:
        return ""
    power = normal.cdf(DIFFERENCE * math.sqrt(retries / variance) - limit)
    return (
        f"{'About' if first else 'At most'} {failures:.0f} of {len(tasks)} tasks fail at first, and {retries} retries "
        f"show a difference of {100 * DIFFERENCE:.0f} points between two reflectors with a power of {power:.0%}; "
        f"{needed} retries have {POWER:.0%}: raise collect.tasks or collect.candidates to compare, not only to train."
    )


def _guess(calls: int) -> tuple[float, float]:
    return calls * _CALL_TOKENS[0], calls * _CALL_TOKENS[1]


def _cost(role: str, units: int, tokens: tuple[float, float], endpoint: Endpoint | None, *, measured: bool) -> str:
    prompt, completion = units * tokens[0], units * tokens[1]
    dollars = endpoint.dollars(prompt, completion) if endpoint else 0.0
    basis = "measured so far" if measured else "guessed"
    return (
        f"{role:9} at most {prompt:,.0f} prompt and {completion:,.0f} completion tokens, {dollars:,.2f} dollars "
        f"({basis})"
    )
