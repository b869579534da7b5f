"""An evaluation of ten riddles, two of them solved at once, with the report that `retroformer eval` writes about it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

from eval.measure.results import ArmResult, Floats, SeedResult, arm_results
from eval.measure.statistics import Rates
from eval.play.verify import VerifiedModel
from eval.report.report import write_report
from eval.report.report_input import ReportInput
from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.method.records import Key, Outcome, Usage
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import Store
from tests.support.characters import PRICE, advice, attempt_at, task
from tests.support.facts import add_invalid, add_trajectory

CONFIG = """
run: riddles
environment: {name: alfworld}
loop: {trials: 2, actions: 15}
actor: {kind: household, endpoint: {model: actor}}
eval:
  arms:
    no reflection: {kind: none}
    trained: {kind: model, model: ppo}
    hopeless: {kind: model, model: base}
"""
POOLED = CONFIG.replace("model: ppo", "model: [ppo-1, ppo-2]")
"""The same with two training seeds of an arm."""
WINS = {"eval/no reflection": 0, "eval/trained/ppo-1": 7, "eval/trained/ppo-2": 6, "eval/hopeless": 0}
TASKS = [task(f"capital-{number:02d}") for number in range(10)]
SCRIPT = "Say <script>alert('Paris')</script> | or **not**\n\n# Lyon"
CAUSE = "The line was <b>cut</b>."
_MEASURES: Mapping[str, Mapping[str, Any]] = {
    "sft": {"samples": 12, "steps": 30, "losses": [2.0 - 0.05 * step for step in range(30)]},
    "reward": {
        "pairs": 9,
        "steps": 2,
        "losses": [0.7, 0.6],
        "train_accuracy": 0.9,
        "held_out_pairs": 40,
        "held_out_accuracy": 0.75,
        "held_out_accuracy_interval": [0.6, 0.86],
    },
    "ppo": {"prompts": 7, "updates": 4, "history": [{"score": 0.1 * n, "kl": 0.2 * n} for n in range(4)]},
    "grpo": {
        "prompts": 7,
        "updates": 4,
        "history": [{"score": 0.1 * n, "kl": 0.2 * n, "different_in_group": 7.5} for n in range(4)],
    },
}
_ADAPTERS: Mapping[str, Sequence[str]] = {"ppo": ("sft", "reward")}
"""Adapters that a stage used, if not that of SFT alone."""


VERIFIED = (
    VerifiedModel("ppo", "ab" * 32, True, True, "Say|Paris\nnow", True),
    VerifiedModel("base", None, False, False, "Lyon", None),
)
"""What the models of `CONFIG` answered when they were checked."""


def write_evaluation(
    config: str,
    wins: Mapping[str, int],
    verified: Sequence[VerifiedModel] = (),
    advised: str = SCRIPT,
) -> Path:
    """Write the store and the report below the working directory; return the folder of the report.

    `wins` are the solved retries of each arm by its name in the store; all arms but the one without advice wrote some.
    """
    Path("riddles.yaml").write_text(config, encoding="utf-8")
    experiment = load(Path("riddles.yaml"))
    with closing(Store(experiment.store_url, experiment.run)) as store:
        for arm in (FIRST_TRIAL, *wins):
            store.declare(arm, {})
        for number, riddle in enumerate(TASKS):
            first = Outcome.SUCCESS if number < 2 else Outcome.FAILURE
            add_trajectory(
                store, Key(arm=FIRST_TRIAL, task_id=riddle.id), attempt_at(riddle, (float(number < 2),), first)
            )
            for stored, solved in wins.items() if number >= 2 else ():
                _retry(store, Key(arm=stored, task_id=riddle.id, trial=1), number < 2 + solved, advised)
        add_invalid(store, Key(arm=list(wins)[-1], task_id=TASKS[5].id, trial=1), CAUSE, PRICE)
        arms = experiment.eval.stored_names
        outcomes = arm_results(store, TASKS, arms, experiment.loop.trials)
        path = write_report(ReportInput(experiment, TASKS, Rates(outcomes), verified, store, "cd" * 32))
    return path.parent


def write_stages(experiment: Experiment, *stages: str, within: str = "", **changes: Any) -> None:
    """Write the folders of trained stages of a run, each with the config it ran with and its metrics."""
    for name in stages:
        folder, stage = Path("runs") / (within or experiment.run) / name, name.partition("-")[0]
        folder.mkdir(parents=True)
        config = {**experiment.as_file(), **changes}
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        metrics = {
            "stage": stage,
            "inputs": {
                "seed": 3,
                "quantization": "nf4",
                "lora": {"rank": 8},
                "optimizer": {"learning_rate": 1e-4}
                | ({"reward": "live", "batch_size": 32, "group": 8} if stage == "grpo" else {}),
                "adapters": {used: f"{within}{used}" for used in _ADAPTERS.get(stage, ("sft",))},
            },
            "adapter_sha256": f"{within}{name}",
            "tokens": 12345,
            "code": {"commit": "0123456789abcdef", "dirty": False},
            **_MEASURES[stage],
        }
        (folder / "metrics.json").write_text(json.dumps(metrics))


def _retry(store: Store, key: Key, won: bool, advised: str) -> None:
    if key.arm != "eval/no reflection":
        store.add_reflection(key, 0, advice(advised if "trained" in key.arm else "Lyon!"))
    outcome = Outcome.SUCCESS if won else Outcome.FAILURE
    riddle = next(riddle for riddle in TASKS if riddle.id == key.task_id)
    add_trajectory(store, key, attempt_at(riddle, (float(won),), outcome))


def evaluated(results: Sequence[ArmResult], **config: Any) -> ReportInput:
    """Return an evaluation with these results, whose store holds nothing."""
    experiment = Experiment.model_validate({"run": "riddles", "environment": {"name": "alfworld"}, **config})
    return ReportInput(experiment, (), Rates(results), (), cast(Store, None))


def arm(name: str, *stored: str, last_counts: bool = False) -> ArmResult:
    """Return an arm of these training seeds, or of one of its own name, without results."""
    seeds = [finished_seed(each, np.zeros((2, 0))) for each in stored or (f"eval/{name}",)]
    return ArmResult(name, tuple(seeds), last_counts=last_counts)


def finished_seed(stored: str, solved_NT: Floats, return_NT: Floats | None = None) -> SeedResult:
    """Return a seed that finished all tasks; its returns are 1 for a solved one, else 0, unless they are given."""
    return_NT = solved_NT if return_NT is None else return_NT
    return SeedResult(stored, solved_NT, return_NT, np.ones(solved_NT.shape[1], bool), invalid=0, usage=Usage())
