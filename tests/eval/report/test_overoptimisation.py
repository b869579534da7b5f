"""Tests of the alarm for scores that rise without success, on ten invented tasks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval.measure.results import ArmResult
from eval.report.overoptimisation import gain_parts, gains
from retroformer.agents.arms.arm import ModelArm
from retroformer.config.experiment import Experiment
from tests.support.evaluations import finished_seed
from tests.support.markdown_tables import markdown, tables_in

SCORES = [0.1, 0.5, 0.9, 1.1, 0.9, 1.3, 1.0, 1.2, 1.0, 1.2]


def outcome(name: str, *seeds: int) -> ArmResult:
    """Return an arm whose seeds solve these numbers of ten tasks by trial 1, and none before."""
    solved_NT = (np.array([[0.0] * 10, [float(task < count) for task in range(10)]]) for count in seeds)
    return ArmResult(name, tuple(finished_seed(f"eval/{name}", of_seed) for of_seed in solved_NT))


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Return a config with two seeds of SFT and PPO, and another PPO whose SFT policy plays no arm."""
    written: dict[str, dict[str, Any]] = {
        **{f"sft-{seed}": {"stage": "sft", "adapter_sha256": f"start {seed}"} for seed in (1, 2)},
        **{f"ppo-{seed}": {"stage": "ppo", "adapter_sha256": f"end {seed}"} for seed in (1, 2, 3)},
        "reward-1": {"stage": "reward", "adapter_sha256": "judge"},
    }
    for name, metrics in written.items():
        if metrics["stage"] == "ppo":
            metrics["inputs"] = {"adapters": {"sft": f"start {name[-1]}", "reward": "judge"}}
            metrics["history"] = [{"score": score + (name == "ppo-2")} for score in SCORES]
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.json").write_text(json.dumps(metrics))
    arms = {
        "alone": {"kind": "none"},
        "SFT": {"kind": "model", "model": ["sft-1", "sft-2"]},
        "PPO": {"kind": "model", "model": ["ppo-1", "ppo-2"]},
        "stranger": {"kind": "model", "model": "ppo-3"},
    }
    adapters = {name: tmp_path / name for name in written}
    return Experiment.model_validate(
        {
            "run": "toy",
            "environment": {"name": "alfworld"},
            "serve": {"adapters": adapters},
            "eval": {"arms": arms},
        }
    )


def test_a_score_that_rises_while_success_does_not_is_an_alarm(experiment: Experiment) -> None:
    outcomes = [outcome("alone", 0), outcome("SFT", 4, 4), outcome("PPO", 4, 4), outcome("stranger", 9)]
    (gain,) = gains(experiment, outcomes)
    assert (gain.arm, gain.start, gain.realised) == ("PPO", "SFT", (0.0, 0.0, 0.0))
    # The last fifth of both seeds is 1.1 above their start, less 0.1 of the first update; a shift is no gain.
    assert gain.scored == pytest.approx(1.0)
    assert gain.alarming
    assert "**Alarm**: the reward model rates *PPO* 1.00 deviations above *SFT*" in markdown(*gain_parts([gain]))


def test_a_gain_in_both_raises_no_alarm(experiment: Experiment) -> None:
    outcomes = [outcome("alone", 0), outcome("SFT", 2, 2), outcome("PPO", 9, 9), outcome("stranger", 9)]
    (gain,) = gains(experiment, outcomes)
    assert gain.realised.low > 0
    assert not gain.alarming
    assert tables_in(markdown(*gain_parts([gain]))) == [[f"| PPO | SFT | +1.00 | {gain.realised} |"]]
    assert "Alarm" not in markdown(*gain_parts([gain]))


def test_a_score_that_did_not_rise_raises_no_alarm(experiment: Experiment) -> None:
    outcomes = [outcome("alone", 0), outcome("SFT", 4, 4), outcome("PPO", 0, 0), outcome("stranger", 9)]
    assert gains(experiment, outcomes)[0].alarming
    assert not gains(experiment, outcomes)[0]._replace(scored=-0.1).alarming


def test_the_best_of_several_answers_is_not_where_a_policy_started(experiment: Experiment) -> None:
    chosen = ModelArm(model=("sft-1+best8", "sft-2+best8"))
    arms = {**experiment.eval.arms, "best of 8": chosen}
    config = experiment.model_copy(update={"eval": experiment.eval.model_copy(update={"arms": arms})})
    outcomes = [outcome("alone", 0), outcome("SFT", 4, 4), outcome("PPO", 4, 4), outcome("best of 8", 9, 9)]
    assert [(gain.arm, gain.start) for gain in gains(config, outcomes)] == [("PPO", "SFT")]
    assert gains(config, [arm for arm in outcomes if arm.name != "SFT"]) == []


def test_without_the_arm_that_ppo_started_from_there_is_no_check(experiment: Experiment) -> None:
    assert gains(experiment, [outcome("alone", 0), outcome("PPO", 4, 4), outcome("stranger", 9)]) == []
    assert list(gain_parts([])) == []


@pytest.mark.parametrize(("reward", "arms"), [("model", ["PPO", "GRPO"]), ("live", ["PPO"])])
def test_grpo_with_a_reward_model_is_checked_too(
    experiment: Experiment, tmp_path: Path, reward: str, arms: list[str]
) -> None:
    for seed in (1, 2):
        metrics = json.loads((tmp_path / f"ppo-{seed}" / "metrics.json").read_text())
        inputs = metrics["inputs"] | {"optimizer": {"reward": reward}}
        written = metrics | {"stage": "grpo", "adapter_sha256": f"group {seed}", "inputs": inputs}
        (tmp_path / f"grpo-{seed}").mkdir()
        (tmp_path / f"grpo-{seed}" / "metrics.json").write_text(json.dumps(written))
    config = experiment.model_dump()
    config["serve"]["adapters"] |= {f"grpo-{seed}": tmp_path / f"grpo-{seed}" for seed in (1, 2)}
    config["eval"]["arms"]["GRPO"] = {"kind": "model", "model": ["grpo-1", "grpo-2"]}
    outcomes = [outcome("alone", 0), outcome("SFT", 4, 4), outcome("PPO", 9, 9), outcome("GRPO", 4, 4)]
    reported = gains(Experiment.model_validate(config), outcomes)
    assert [gain.arm for gain in reported] == arms
    assert [gain.arm for gain in reported if gain.alarming] == arms[1:]
