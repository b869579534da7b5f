"""Plays tasks under a candidate and under its baseline until a sequential test decides, and records a promotion.

Both retry the same failed first attempts. Every attempt is a fact of the run, so a test that is killed continues, and
a later test against the same adapter plays its half only.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retroformer.agents.arms.arm import Arm, ModelArm
from retroformer.agents.arms.baselines import NoAdviceArm
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config, load_config
from retroformer.config.parts import Parts, check_prompts, chosen_tasks, parts
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput, ProvenanceError
from retroformer.method.records import Task
from retroformer.run.adapters import finished_advisers, has_adapter, model_folder
from retroformer.run.arm_names import GATE_FIRST_TRIAL, gate_arm, is_gate_arm
from retroformer.run.attempts import Budget
from retroformer.run.ledger import Ledger
from retroformer.run.progress import tally
from retroformer.run.promotions import DIGITS, NO_ADVICE, History, PromotedAdapter, Promotion, current_of, name_of
from retroformer.run.schedule import Work, work_through
from retroformer.run.store import Store, open_whole_store
from retroformer.run.store.reading import chunks

from ..measure.betting import LEVEL, Conclusion, SequentialTest, sequential_test
from ..play.evaluation import Evaluation
from ..play.preflight import refuse_adapter_trained_on, refuse_trained_tasks
from .monitor import evidence_of

logger = logging.getLogger(__name__)

_TRIALS = 2
"""The first attempt, which both share, and one retry."""


class PromotionTest(NamedTuple):
    """A candidate, what it is compared with, and the tasks, in the order in which they are played."""

    history: History
    earlier: Sequence[Promotion]
    """The promotions so far."""
    candidate: PromotedAdapter
    baseline: PromotedAdapter | None
    """None: no advice."""
    config: Config
    """Config whose own server serves both adapters."""
    tasks: tuple[Task, ...]


def prepare(path: Path, overrides: Sequence[str], name: str, against: str) -> PromotionTest:
    """Copy the candidate and choose the tasks.

    Raises:
        ConfigError: the config, the tasks or the adapter cannot be used; the message says what to change.
        MissingInput: there is no such adapter, or the split has no tasks.
        DamagedFile: a promotion is damaged.
    """
    experiment = load_config(path, overrides).experiment
    _refuse_config(experiment)
    history = History(experiment.folder)
    earlier = history.records()
    candidate = history.keep(name, _folder_of_candidate(experiment, name))
    baseline = None if against == "none" else current_of(earlier)
    _refuse_candidate(earlier, candidate, baseline)
    adapters = [adapter for adapter in (candidate, baseline) if adapter is not None]
    # Names that depend on nothing but the content: the conditions of an adapter's retries are then always the same.
    served = [f"serve.adapters.{served_name(adapter)}={history.folder_of(adapter)}" for adapter in adapters]
    split = experiment.held_out_splits[0]
    played = [f'environment.split="{split}"', f'eval.split="{split}"', f"loop.trials={_TRIALS}"]
    config = load_config(path, (*overrides, *served, *played))
    tasks = chosen_tasks(config.experiment, None, (split,))
    with closing(open_whole_store(experiment)) as store:
        refuse_trained_tasks(store, tasks)
    for adapter in adapters:
        refuse_adapter_trained_on(experiment, str(adapter), history.folder_of(adapter), tasks)
    check_prompts(config.experiment)
    shuffled = random.Random(f"gate {experiment.seed}").sample(tasks, len(tasks))
    return PromotionTest(history, earlier, candidate, baseline, config, tuple(shuffled))


def served_name(adapter: PromotedAdapter) -> str:
    return f"gate-{adapter.sha256[:DIGITS]}"


def _refuse_config(experiment: Experiment) -> None:
    if experiment.domains:
        raise ConfigError(
            "A promotion is decided on the tasks of one environment, and this config has domains: use a config of one "
            "of them with the same run."
        )
    if experiment.reflector.endpoint.base_url is not None:
        raise ConfigError(
            "reflector.endpoint.base_url names another server, and a promotion is decided on a server of its own: add "
            "reflector.endpoint.base_url= to the command."
        )
    if "reflector" in experiment.serve.adapters:
        raise ConfigError("serve.adapters.reflector fixes what is served as reflector: leave it out to promote.")


def _folder_of_candidate(experiment: Experiment, name: str) -> Path:
    names = [*finished_advisers(experiment), *experiment.serve.adapters]
    folder = model_folder(experiment, name)
    if name not in names or not has_adapter(folder):
        raise MissingInput(
            f"No adapter {name!r} in {experiment.folder} can be promoted, only {', '.join(names) or 'none yet'}: train "
            "it with `retroformer train`, or name it in serve.adapters."
        )
    return folder


def _refuse_candidate(
    earlier: Sequence[Promotion], candidate: PromotedAdapter, baseline: PromotedAdapter | None
) -> None:
    if baseline is not None and candidate.sha256 == baseline.sha256:
        raise ConfigError(
            f"{name_of(candidate)} is the reflector already: add --against none to compare it with no advice."
        )
    for record in earlier:
        replaced = record.replaced
        if record.by_monitor and replaced is not None and replaced.sha256 == candidate.sha256:
            raise ConfigError(
                f"{name_of(candidate)} was rolled back on {record.at:%Y-%m-%d}, as live outcomes have shown it to be "
                "worse than no advice: train another adapter."
            )


class Decision(NamedTuple):
    sentence: str
    promotion: Promotion | None
    """None if the candidate is not promoted."""


async def decide(plan: PromotionTest) -> Decision:
    """Play until the test decides or the tasks end; record a promotion if the candidate is better.

    Raises RetroformerError: the infrastructure failed, the budget is spent, or another command has changed the
    reflector. Everything played so far is stored.
    """
    experiment = plan.config.experiment
    with closing(open_whole_store(experiment)) as store, closing(Ledger(store)) as ledger:
        async with parts(plan.config, asks_reflector=True) as components:
            for adapter in (plan.candidate, plan.baseline):
                if adapter is not None and components.adapter_sha256.get(served_name(adapter)) != adapter.sha256:
                    raise ProvenanceError(f"The server does not serve {adapter}: run the command again.")
            test, differences = await _play(plan, components, ledger)
    worse = test.conclusion is Conclusion.WORSE
    evidence = evidence_of(
        name_of(plan.baseline),
        np.array(differences[: test.observations], dtype=np.float64),
        test.log_wealth_worse if worse else test.log_wealth_better,
        LEVEL,
        (_stored_arm(plan.candidate), _stored_arm(plan.baseline)),
    )
    if test.conclusion is not Conclusion.BETTER:
        shown = "is worse" if worse else "is not shown to be better"
        return Decision(f"Not promoted: {plan.candidate} {shown} ({evidence}).", None)
    promotion = plan.history.append(plan.earlier, "promoted", plan.candidate, "shown to be better", evidence)
    return Decision(f"Promoted: reflector is {plan.candidate} ({evidence}).", promotion)


def tasks_to_retry(store: Store, tasks: Sequence[Task], openings: dict[str, str]) -> list[Task]:
    """Return the tasks that failed at first. One without a first attempt is left out: no adviser took part in it.

    So is one that begins as another has, since copies of a task are no independent evidence. `openings` has the task
    that counts for each opening so far, and grows.
    """
    ids = [task.id for task in tasks]
    failed = {row.task_id for row in store.attempt_rows(GATE_FIRST_TRIAL, ids) if row.failed}
    begun = dict(store.openings(GATE_FIRST_TRIAL, ids))
    copies = [name for name in ids if name in begun and openings.setdefault(begun[name], name) != name]
    if copies:
        logger.warning("%d tasks begin as others do and are not counted, such as %r.", len(copies), copies[0])
    return [task for task in tasks if task.id in failed.difference(copies)]


def differences_of(store: Store, failed: Sequence[Task], candidate: str, baseline: str) -> list[float]:
    """Return for each of these tasks the return of the candidate's retry minus that of the baseline's.

    A return counts as at least 0 and at most 1. Raises InfrastructureFailure: a retry is missing. It is not left out,
    since bad advice may be the reason.
    """
    ids = [task.id for task in failed]
    candidates, baselines = (
        {row.task_id: min(1.0, max(0.0, row.episode_return)) for row in store.attempt_rows(arm, ids) if row.trial == 1}
        for arm in (candidate, baseline)
    )
    if missing := [task_id for task_id in ids if task_id not in candidates or task_id not in baselines]:
        cause = store.last_cause(candidate) or store.last_cause(baseline)
        raise InfrastructureFailure(
            f"{len(missing)} retries could not be played, such as that of {missing[0]!r}: run the same command again "
            f"to go on. The last cause: {cause}"
        )
    return [candidates[task_id] - baselines[task_id] for task_id in ids]


async def _play(plan: PromotionTest, components: Parts, ledger: Ledger) -> tuple[SequentialTest, list[float]]:
    """Play a few tasks at a time; return the test, and the differences of all pairs played.

    Raises ConfigError: an arm holds facts of other conditions.
    """
    experiment, store, concurrency = plan.config.experiment, ledger.store, plan.config.experiment.loop.concurrency
    budget = Budget(experiment.gate, lambda: store.usage_of_arms(is_gate_arm), "gate")
    evaluation = Evaluation(plan.config, components, ledger, plan.tasks, asyncio.Semaphore(concurrency), budget)
    arms: dict[str, Arm] = {GATE_FIRST_TRIAL: NoAdviceArm()}
    for adapter in (plan.candidate, plan.baseline):
        arms[_stored_arm(adapter)] = NoAdviceArm() if adapter is None else ModelArm(model=served_name(adapter))
    played = [evaluation.played_arm(stored, arm, GATE_FIRST_TRIAL) for stored, arm in arms.items()]
    for played_arm in played:
        store.declare(played_arm.stored, played_arm.conditions)
    first, *sides = map(evaluation.experience_of, played)
    differences, openings = list[float](), dict[str, str]()
    test = sequential_test(differences, LEVEL)
    with tally("gate", len(plan.tasks)) as counts:
        for experience in (first, *sides):
            experience.on_event = counts.count
        for chunk in chunks(plan.tasks, concurrency):
            await work_through(ledger, [Work(first, chunk)], concurrency, lambda _, __: None)
            failed = await ledger.ask(tasks_to_retry, store, chunk, openings)
            await work_through(ledger, [Work(side, failed) for side in sides], concurrency, lambda _, __: None)
            counts.done(tasks=len(chunk))
            differences += await ledger.ask(differences_of, store, failed, sides[0].arm, sides[1].arm)
            test = sequential_test(differences, LEVEL)
            if test.conclusion is not Conclusion.OPEN:
                break
    if not store.played_tasks(GATE_FIRST_TRIAL):
        raise MissingInput(f"No task could be played. The last cause: {store.last_cause(GATE_FIRST_TRIAL)}")
    return test, differences


def _stored_arm(adapter: PromotedAdapter | None) -> str:
    return gate_arm(NO_ADVICE if adapter is None else adapter.sha256[:DIGITS])
