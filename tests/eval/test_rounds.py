"""Rounds on generated games with a tiny model: real collecting, training, serving and comparing."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.report.report import compare_arms
from eval.rounds import _shares, _Worker, improve_in_rounds
from retroformer.config.file import load, load_config
from retroformer.errors import ConfigError, ServiceError, StoreError
from retroformer.method.records import Key
from retroformer.run.store import open_store
from tests.support.characters import CAPITAL, attempt_at
from tests.support.endpoint import Endpoint
from tests.support.facts import add_trajectory
from tests.support.processes import descendants
from tests.support.runs import ROOT
from tests.support.waiting import becomes_true
from tests.train.world import save_tiny_model


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    content: dict[str, Any] = {
        "run": "rounds",
        "environment": {"name": "alfworld", "source": "generated", "split": "train", "receptacles": 8, "max_steps": 20},
        "loop": {"trials": 2, "actions": 9},
        "reflector": {"view": "compact", "max_new_tokens": 4, "endpoint": {"model": "base"}},
        "collect": {"tasks": 4, "candidates": 1},
        "train": {
            "base_model": str(save_tiny_model(tmp_path / "base")),
            "quantization": "none",
            "dtype": "float32",
            "report_to": "none",
            "batch_size": 8,
            "micro_batch_tokens": 800,
            "sft": {"learning_rate": 1e-3, "texts": "hindsight"},
        },
        "serve": {"port": 0},
        # The report's own settings, which do not concern the comparison on development tasks.
        "eval": {"repeats": 2},
        "rounds": {"count": 2, "stages": ["sft"], "split": "held_out", "tasks": 3},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
def test_each_round_goes_on_with_the_better_reflector_and_is_not_repeated(config: Path) -> None:
    first, second, best, spent = improve_in_rounds(config, [])
    assert first.startswith("round 1: share of the development tasks solved: base ")
    assert ", sft " in first
    assert ", sft-2 " in second
    shares = dict(part.split() for part in first.partition("solved: ")[2].split(", "))
    leader = "sft" if float(shares["sft"]) > float(shares["base"]) else "base"
    assert second.partition("solved: ")[2].startswith(f"{leader} ")
    with closing(open_store(load(config))) as store:
        authors = {stored.reflection.author.model for stored in store.stream_reflections("collect 2")}
    assert authors == {leader}, "the second round is collected with the better reflector"
    assert best.startswith("best reflector: ")
    total, collecting, training = (float(word) for word in spent.split() if word.isdecimal())
    assert collecting + training <= total + 2
    trained = [Path("runs/rounds") / name / "adapter_model.safetensors" for name in ("sft", "sft-2")]
    times = [path.stat().st_mtime_ns for path in trained]
    assert list(improve_in_rounds(config, []))[:-1] == [first, second, best]
    assert [path.stat().st_mtime_ns for path in trained] == times


@pytest.mark.slow
def test_a_teacher_writes_until_a_trained_reflector_is_better_and_never_for_it(config: Path) -> None:
    splits = {"train": 8, "development": 2, "held_out": 3}
    names = [(split, number) for split, count in splits.items() for number in range(count)]
    tasks = [{"id": f"{split}-{number}", "split": split, "input": "Shout."} for split, number in names]
    Path("tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    Path("shouter.py").write_text("def attempt(task, advice=''):\n    return {'output': '', 'score': 'aa' in advice}\n")
    content = yaml.safe_load(config.read_text())
    content["environment"] = {"name": "agent", "data": "tasks.jsonl", "agent": {"python": "shouter:attempt"}}
    base = Path(content["train"]["base_model"], "config.json")
    # An agent's prompt is longer than that of a game.
    base.write_text(json.dumps(json.loads(base.read_text()) | {"max_position_embeddings": 2048}))
    content["train"] |= {"batch_size": 1, "sft": {"learning_rate": 1e-2, "epochs": 20}}
    content["rounds"]["split"] = "development"
    arms = {"alone": {"kind": "none"}, "teacher": {"kind": "teacher"}, "trained": {"kind": "model", "model": "sft"}}
    content["eval"] = {"split": "held_out", "arms": arms}
    with Endpoint(lambda body: "aaaa") as teacher:
        content["reflector"] = {"max_new_tokens": 4, "teacher": {"base_url": teacher.url, "model": "big"}}
        config.write_text(yaml.safe_dump(content))
        first, *_ = improve_in_rounds(config, [])
        assert "base 0.000, sft 1.000" in first
        assert len(teacher.requests) == 4, "of a round's tasks, each fails once"
        asyncio.run(compare_arms(load_config(config)))
        assert len(teacher.requests) == 4 + splits["held_out"]
    with closing(open_store(load(config))) as store:
        authors = {
            arm: {stored.reflection.author.model for stored in store.stream_reflections(arm)} for arm in store.arms()
        }
        solved = {arm: [row.episode_return for row in store.attempt_rows(f"eval/{arm}")] for arm in arms}
    assert (authors["collect"], authors["collect 2"]) == ({"big"}, {"sft"})
    assert (authors["eval/teacher"], authors["eval/trained"]) == ({"big"}, {"sft"})
    assert solved == {"alone": [0.0] * 3, "teacher": [1.0] * 3, "trained": [1.0] * 3}


@pytest.mark.slow
def test_a_round_may_be_collected_while_the_one_before_it_trains(config: Path) -> None:
    """Both rounds are collected with the first reflector, whatever came of the first round, and with its tokens."""
    words = ["rounds.staleness=1", "train.grpo.reward=stored", "reflector.temperature=1.0"]
    first, _, best, spent = improve_in_rounds(config, words)
    assert next(improve_in_rounds(config, words)) == first
    assert best.startswith("best reflector: ")
    total, collecting, training = (float(word) for word in spent.split() if word.isdecimal())
    assert collecting + training > total
    with closing(open_store(load(config, words))) as store:
        for arm in ("collect", "collect 2"):
            reflections = list(store.stream_reflections(arm))
            assert reflections
            assert {stored.reflection.author.model for stored in reflections} == {"base"}
            assert all(stored.reflection.drawn for stored in reflections)


@pytest.mark.slow
def test_sigterm_ends_the_commands_of_the_rounds_too(config: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "eval", "rounds", str(config)], stderr=subprocess.PIPE, text=True)
    assert becomes_true(lambda: bool(descendants(process.pid)))
    started = descendants(process.pid)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Stopped by SIGTERM: run the same command again to go on." in said
    assert becomes_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def test_a_failed_collection_does_not_wait_for_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("collect.py").write_text(
        "import pathlib, sys, time\n"
        "sys.exit('failed') if 'round=1' in sys.argv else time.sleep(40)\n"
        "pathlib.Path('second').touch()\n"
    )
    with _Worker() as collector:
        first, _ = [collector.submit("collect", [f"round={number}"]) for number in (1, 2)]
        with pytest.raises(ServiceError, match="collect round=1` failed"):
            first.result()
    assert not Path("second").exists(), "it was ended, not awaited"


def test_a_changed_fact_of_the_development_tasks_chooses_no_reflector(config: Path) -> None:
    development = load(config, ["run=rounds.development"])
    with closing(open_store(development)) as store:
        add_trajectory(store, Key(arm="eval base", task_id=CAPITAL.id), attempt_at())
    with closing(sqlite3.connect(development.folder / "experience.db")) as connection, connection:
        connection.execute("UPDATE trajectories SET episode_return = 1.0")
    with pytest.raises(StoreError, match=r"is damaged \(the row of arm 'eval base'"):
        _shares(load(config), config, [], ["base", "sft"])


def test_rounds_without_development_tasks_are_refused(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"set rounds\.split"):
        next(improve_in_rounds(config, ["rounds.split=null"]))


@pytest.mark.parametrize("override", ["rounds.split=train", "eval.split=held_out", "eval.split=[other, held_out]"])
def test_a_reflector_is_not_chosen_on_tasks_that_it_is_trained_or_evaluated_on(config: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=r"a reflector must be chosen on other tasks"):
        next(improve_in_rounds(config, [override]))


@pytest.mark.slow
def test_a_step_that_fails_ends_the_rounds(config: Path) -> None:
    with pytest.raises(ServiceError, match=r"`retroformer collect .* failed"):
        next(improve_in_rounds(config, ["train.base_model=/nowhere"]))
