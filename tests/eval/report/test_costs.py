"""Tests of what arms cost to make and to use: each pays for its own stages and what they read."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.method.records import Key, Usage
from retroformer.run.promotions import History
from retroformer.run.provenance import ADAPTER_FILES
from retroformer.run.store import open_store
from tests.support.characters import CAPITAL, advice, attempt_at
from tests.support.evaluations import CONFIG, VERIFIED, write_evaluation, write_stages
from tests.support.facts import add_trajectory


def test_an_arm_costs_what_its_run_collected_and_all_its_stages_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0}
    assert "cost to make" not in (write_evaluation(CONFIG, wins) / "report.md").read_text(), "nothing was trained here"
    experiment = load(Path("riddles.yaml"))
    write_stages(experiment, "sft", "reward", "ppo")
    with closing(open_store(experiment)) as store:
        for arm, calls in (("collect", 7), ("written", 2), ("eval/trained", 100)):
            store.declare(arm, {})
            add_trajectory(
                store, Key(arm=arm, task_id="another"), attempt_at(CAPITAL).model_copy(update={"usage": Usage()})
            )
            store.charge(arm, Usage(calls=calls, prompt_tokens=10 * calls))
    section = (write_evaluation(CONFIG, wins) / "report.md").read_text().partition("cost to make and to use")[2]
    row = next(line for line in section.splitlines() if line.startswith("| trained "))
    # 12,345 tokens in each of three stages; calls of the evaluation are not those of making.
    assert row.split(" | ")[1:6] == ["0", "9", "90", "37,035", "0"]
    assert "| hopeless " not in section.partition("## ")[0]
    metrics = experiment.folder / "ppo" / "metrics.json"
    metrics.write_text(json.dumps(json.loads(metrics.read_text()) | {"resumed_from_update": 2}))
    text = (write_evaluation(CONFIG, wins, VERIFIED) / "report.md").read_text()
    row = next(line for line in text.partition("cost to make and to use")[2].splitlines() if line[:10] == "| trained ")
    assert row.split(" | ")[1:6] == ["0", "9", "90", "37,035", "-"], "the CPU time of a resumed stage was not measured"
    assert text.count("| 12,345 | - |") == 1


def test_a_promoted_adapter_costs_what_it_cost_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG + "    served: {kind: model, model: reflector}\n"
    wins = {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0, "eval/served": 6}
    Path("riddles.yaml").write_text(config)
    experiment = load(Path("riddles.yaml"))
    write_stages(experiment, "sft", "reward", "ppo")
    for name in ADAPTER_FILES:
        (experiment.folder / "ppo" / name).write_text("weights")

    def costs() -> set[str]:
        section = (write_evaluation(config, wins) / "report.md").read_text().partition("cost to make and to use")[2]
        rows = [line for line in section.splitlines() if line.startswith(("| trained ", "| served "))]
        return {row.split(" | ")[4] for row in rows[:2]}

    assert costs() == {"37,035"}
    history = History(experiment.folder)
    history.append((), "first", history.keep("ppo", experiment.folder / "ppo"), "nothing was served before")
    assert costs() == {"37,035"}


def test_an_arm_does_not_pay_for_adapters_and_retries_that_others_were_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arms = {"near": "ppo-near", "live": "grpo", "imitating": "sft"}
    config = CONFIG + "".join(f"    {name}: {{kind: model, model: {model}}}\n" for name, model in arms.items())
    wins = dict.fromkeys(("eval/no reflection", "eval/trained", "eval/hopeless", *(f"eval/{name}" for name in arms)), 0)
    Path("riddles.yaml").write_text(config)
    experiment = load(Path("riddles.yaml"))
    write_stages(experiment, "sft", "reward", "ppo-near", "grpo")
    with closing(open_store(experiment)) as store:
        for arm, calls in (("collect", 7), ("grpo", 30), ("document", 500), ("collect 2", 1000)):
            store.declare(arm, {})
            played = attempt_at(CAPITAL).model_copy(update={"usage": Usage()})
            for trial in range(2):
                add_trajectory(store, Key(arm=arm, task_id="another", trial=trial), played)
            store.add_reflection(Key(arm=arm, task_id="another", trial=1), 0, advice("Paris?"))
            store.charge(arm, Usage(calls=calls))
    for path in experiment.folder.glob("*/metrics.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rounds": [1]}))
    folder = write_evaluation(config, wins)
    section = (folder / "report.md").read_text().partition("cost to make and to use")[2].partition("\n## ")[0]
    rows = [
        line.strip("| ").split(" | ")
        for line in section.splitlines()
        if line.startswith(tuple(f"| {arm} " for arm in arms))
    ]
    # Four updates of four groups, with 7.5 distinct texts each; the second round was read by none of them.
    assert {row[0]: (row[1], row[2], row[4]) for row in rows} == {
        "near": ("1", "8", "37,035"),
        "live": ("121", "39", "24,690"),
        "imitating": ("1", "8", "12,345"),
    }
    drawn = (folder / "ratings.svg").read_text()
    assert "<title>live returns</title>" in drawn
    assert "<title>PPO</title>" not in drawn, "it read as many ratings as the SFT it started from"
