"""Report sections on training, from invented metrics of the stages."""

import json
from pathlib import Path
from typing import Any

import pytest

from eval.report.training import (
    curve_table,
    group_by_title,
    reward_audit,
    trained_adapters,
    training_figures,
    training_table,
)
from retroformer.config.experiment import Experiment
from retroformer.files.document import LineChart
from tests.support.markdown_tables import markdown, tables_in

COST = {"tokens": 12345, "cpu_seconds": 67.8, "peak_memory_bytes": 2**30}
WRITTEN: dict[str, dict[str, Any]] = {
    "one/warm": {"stage": "warm", "samples": 20, "steps": 3, "losses": [3.0, 2.0, 1.0]},
    "one/sft": {"stage": "sft", "samples": 12, "steps": 2, "losses": [1.0, 0.5]},
    "one/reward": {
        "stage": "reward",
        "pairs": 9,
        "steps": 2,
        "losses": [0.7, 0.6],
        "train_accuracy": 0.9,
        "held_out_pairs": 4,
        "held_out_accuracy": 0.75,
        "held_out_accuracy_interval": [0.3006, 0.9544],
        "held_out_equal_length_accuracy": 0.5,
    },
    "one/dpo": {
        "stage": "dpo",
        "pairs": 9,
        "steps": 3,
        "losses": [0.693, 0.5],
        "train_accuracy": 0.8,
        "held_out_pairs": 4,
        "held_out_accuracy": 0.5,
        "held_out_tasks_read_by_start": 2,
    },
    "one/ppo": {"stage": "ppo", "prompts": 7, "updates": 2, "history": [{"score": 0, "kl": 0}, {"score": 1, "kl": 2}]},
    "one/grpo": {"stage": "grpo", "prompts": 7, "updates": 1, "history": [{"score": 0.5, "kl": 1}]},
    "two/ppo": {
        "stage": "ppo",
        "prompts": 8,
        "updates": 2,
        "history": [{"score": 0, "kl": 0}, {"score": 0.5, "kl": 1}],
    },
}


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    for name, metrics in WRITTEN.items():
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps(metrics | COST))
    adapters = {f"{name.partition('/')[2]}-{name.partition('/')[0]}": tmp_path / name for name in WRITTEN}
    return Experiment.model_validate(
        {"run": "toy", "environment": {"name": "alfworld"}, "serve": {"adapters": adapters}}
    )


def test_the_stages_are_listed_in_order_with_ppos_reward_model(experiment: Experiment) -> None:
    adapters = trained_adapters(experiment, ["ppo-two", "ppo-one", "warm-one", "base"])
    assert [(adapter.stage, adapter.folder.parent.name) for adapter in adapters] == [
        ("warm", "one"),
        ("reward", "one"),
        ("ppo", "one"),
        ("ppo", "two"),
    ]


def test_best_of_n_is_listed_with_its_reward_model(experiment: Experiment) -> None:
    adapters = trained_adapters(experiment, ["sft-one+best8", "sft-one"])
    assert [(adapter.stage, adapter.folder.parent.name) for adapter in adapters] == [("sft", "one"), ("reward", "one")]


def test_a_copy_of_an_adapter_in_another_run_is_listed_once(experiment: Experiment) -> None:
    for name in ("one/reward", "two/reward"):
        folder = experiment.serve.adapters["ppo-one"].parents[1] / name
        folder.mkdir(exist_ok=True)
        (folder / "metrics.json").write_text(json.dumps(WRITTEN["one/reward"] | COST | {"adapter_sha256": "same"}))
    adapters = trained_adapters(experiment, ["ppo-one", "ppo-two"])
    assert [(adapter.stage, adapter.folder.parent.name) for adapter in adapters] == [
        ("reward", "one"),
        ("ppo", "one"),
        ("ppo", "two"),
    ]


def test_each_stage_is_a_row_with_its_data_and_cost_as_far_as_it_wrote_them(experiment: Experiment) -> None:
    (experiment.serve.adapters["warm-one"] / "metrics.json").write_text('{"stage": "warm"}')
    adapters = trained_adapters(experiment, ["warm-one", "sft-one", "ppo-one"])
    (rows,) = tables_in(markdown(training_table(adapters)))
    assert [row.split(" | ")[2:] for row in rows] == [
        ["-", "0 steps", "0", "0", "0.0", "- |"],
        ["12 texts", "2 steps", "12,345", "68", "1.0", "- |"],
        ["9 pairs", "2 steps", "12,345", "68", "1.0", "- |"],
        ["7 prompts", "2 updates", "12,345", "68", "1.0", "- |"],
    ]


def test_the_audit_of_the_reward_model_marks_missing_values(experiment: Experiment) -> None:
    ((row,),) = tables_in(markdown(*reward_audit(trained_adapters(experiment, ["ppo-one"]))))
    assert row.endswith("| 0.9 | 4 | 0.75 [0.30, 0.95] | 0.5 | - | - | - | - | - | - |")
    assert list(reward_audit(trained_adapters(experiment, ["sft-one"]))) == []


def test_the_tests_of_the_held_out_accuracy_are_shown_where_the_stage_wrote_them(experiment: Experiment) -> None:
    path = experiment.serve.adapters["ppo-one"].parent / "reward" / "metrics.json"
    tested = {
        "held_out_p_value": 0.3125,
        "held_out_power": 0.0,
        "held_out_against_longer": [2, 1],
        "held_out_p_value_against_longer": 0.5,
    }
    path.write_text(json.dumps(WRITTEN["one/reward"] | COST | tested))
    audit = markdown(*reward_audit(trained_adapters(experiment, ["ppo-one"])))
    assert "| reward model | held-out pairs | p against chance | power | p against longer wins |" in audit
    _, (row,) = tables_in(audit)
    assert row.endswith("one/reward` | 4 | 0.31 | 0% | 0.5 (2 better, 1 worse) |")
    assert audit.rpartition("\n\n")[2].startswith("Whether the accuracy above is more than luck.")


def test_dpo_has_a_row_before_ppo_and_is_audited_by_its_implicit_reward(experiment: Experiment) -> None:
    adapters = trained_adapters(experiment, ["ppo-one", "dpo-one"])
    assert [adapter.stage for adapter in adapters] == ["reward", "dpo", "ppo"]
    (rows,) = tables_in(markdown(training_table(adapters)))
    assert rows[1].startswith("| DPO | ")
    assert rows[1].split(" | ")[2:] == ["9 pairs", "3 steps", "12,345", "68", "1.0", "- |"]
    ((_, row),) = tables_in(markdown(*reward_audit(adapters)))
    assert row.endswith("one/dpo` (implicit) | 0.8 | 4 | 0.5 | - | - | - | - | - | - | 2 |")


def test_grpo_is_listed_beside_ppo(experiment: Experiment) -> None:
    adapters = trained_adapters(experiment, ["ppo-two", "grpo-one"])
    assert [adapter.stage for adapter in adapters] == ["grpo", "ppo"]
    assert tables_in(markdown(training_table(adapters)))[0][0].split(" | ")[::2][:2] == ["| GRPO", "7 prompts"]


@pytest.mark.parametrize(("reward", "stages"), [("model", ["reward", "grpo"]), ("live", ["grpo"])])
def test_grpos_reward_model_is_listed_if_it_had_one(experiment: Experiment, reward: str, stages: list[str]) -> None:
    path = experiment.serve.adapters["grpo-one"] / "metrics.json"
    path.write_text(json.dumps(WRITTEN["one/grpo"] | COST | {"inputs": {"optimizer": {"reward": reward}}}))
    assert [adapter.stage for adapter in trained_adapters(experiment, ["grpo-one"])] == stages


def test_live_returns_milestones_and_rounds_have_separate_lines(experiment: Experiment) -> None:
    grpo, ppo = trained_adapters(experiment, ["grpo-one", "ppo-two"])
    live = grpo._replace(metrics=grpo.metrics.model_copy(update={"inputs": {"optimizer": {"reward": "live"}}}))
    milestone, later = (live._replace(folder=live.folder.with_name(name)) for name in ("grpo-at10", "grpo-at10-2"))
    again = ppo._replace(folder=ppo.folder.with_name("ppo-2"))
    titles = ["live returns", "live returns, variant at10", "live returns, variant at10, round 2"]
    assert list(group_by_title([grpo, live, milestone, later, ppo, again])) == ["GRPO", *titles, "PPO", "PPO, round 2"]


def test_adapters_with_other_settings_are_not_pooled_as_seeds(experiment: Experiment) -> None:
    (ppo,) = (adapter for adapter in trained_adapters(experiment, ["ppo-one"]) if adapter.stage == "ppo")
    near, far, far_again = (
        ppo._replace(
            metrics=ppo.metrics.model_copy(update={"inputs": {"seed": seed, "optimizer": {"kl": kl, "clip": 0.2}}})
        )
        for seed, kl in ((1, 0.2), (1, 0.05), (2, 0.05))
    )
    assert group_by_title([near, far, far_again]) == {"PPO, kl 0.2": [near], "PPO, kl 0.05": [far, far_again]}


def test_the_table_of_curves_has_means_over_seeds_with_students_interval(experiment: Experiment) -> None:
    """Both first scores are 0; the last are 1 and 0.5: mean 3/4, deviation sqrt(1/8), so 3/4 +- 12.71 / 4."""
    adapters = trained_adapters(experiment, ["ppo-one", "ppo-two"])
    ((_, score, divergence),) = tables_in(markdown(*curve_table(adapters)))
    assert score == "| PPO | score | 2 | 0.000 [0.000, 0.000] | 0.750 [-2.428, 3.928] |"
    assert divergence.startswith("| PPO | kl | 2 | 0.000 [")


def test_no_step_counts_as_one_of_the_first_and_of_the_last(experiment: Experiment) -> None:
    table = markdown(*curve_table(trained_adapters(experiment, ["sft-one", "warm-one", "grpo-one"])))
    # Two and three steps leave windows of one step; a single update has no last that is not its first.
    assert "| SFT | loss | 1 | 1.000 | 0.500 |" in table
    assert "| warm start | loss | 1 | 3.000 | 1.000 |" in table
    assert "| GRPO | score | 1 | - | - |" in table


def test_curves_of_seeds_are_drawn_with_their_mean_and_interval(experiment: Experiment) -> None:
    names = ["warm-one", "dpo-one", "ppo-one", "ppo-two"]
    figures = {figure.name: figure.chart for figure in training_figures(trained_adapters(experiment, names))}
    assert list(figures) == ["imitation", "pairs", "score", "divergence"]
    score = figures["score"]
    assert isinstance(score, LineChart)
    (ppo,) = score.series
    assert ppo.members == (((1.0, 0.0), (2.0, 1.0)), ((1.0, 0.0), (2.0, 0.5)))
    assert ppo.points == ((1.0, 0.0), (2.0, 0.75))
    assert ppo.bounds[1] == (pytest.approx(0.75 - 12.71 / 4), pytest.approx(0.75 + 12.71 / 4))


def test_no_figure_is_empty(experiment: Experiment) -> None:
    assert [figure.name for figure in training_figures(trained_adapters(experiment, ["sft-one"]))] == ["imitation"]
