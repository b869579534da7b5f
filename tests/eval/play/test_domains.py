"""A run over two environments with one reflector, end to end: collected, trained on the pooled ratings, and evaluated.

The parts are real: generated household games, questions of our own, the stages' commands, and an own server with the
trained adapter of a tiny base model. A remote endpoint writes the collected advice and answers the questions.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from collect.__main__ import main as collect
from eval.__main__ import main as evaluate
from eval.play import preflight
from retroformer.__main__ import main as retroformer
from retroformer.config.experiment import Experiment
from retroformer.config.file import load_domains
from retroformer.config.parts import chosen_tasks
from retroformer.errors import ConfigError
from retroformer.method.records import Author, Key, Reflection
from retroformer.run.stage_metrics import read_metrics
from retroformer.run.store import open_store, open_whole_store
from tests.support.endpoint import Body, Endpoint, prompt_of, reply_to
from tests.support.runs import ROOT
from tests.train.world import save_tiny_model
from train.__main__ import main as train

ADVICE = "Name the town where she was born."
QUESTIONS = 5
HELD_OUT = 2


def answers(body: Body) -> str:
    """Answer a question rightly if the prompt has the advice; advise about questions, and about homes by a place."""
    prompt = prompt_of(body)
    if number := re.search(r"Thought (\d+):\s*$", prompt):
        town = "Bergen" if ADVICE in prompt else "Oslo"
        return f" I know.\nAction {number[1]}: Finish[{town}]"
    return ADVICE if "Ada Lind" in prompt else reply_to(body)


def write_questions(folder: Path) -> None:
    pages = [{"title": "Ada Lind", "sentences": ["Ada Lind was born in Bergen."]}]
    questions = [
        {
            "id": f"born-{number}",
            "question": f"Where was Ada Lind, guest number {number}, born?",
            "answer": "Bergen",
            "supporting_facts": [["Ada Lind", 0]],
        }
        for number in range(QUESTIONS)
    ]
    ids = [question["id"] for question in questions]
    folder.mkdir()
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (folder / "docstore.jsonl").write_text("\n".join(map(json.dumps, pages)))
    (folder / "splits.json").write_text(json.dumps({"early": ids[:-HELD_OUT], "late": ids[-HELD_OUT:]}))


def write_config(folder: Path, base: Path, url: str) -> Path:
    questions = {"name": "hotpotqa", "data": "questions", "split": "early", "context": True, "max_steps": 1}
    content: dict[str, Any] = {
        "run": "two",
        "loop": {"trials": 2, "memory": 1, "retries": 0},
        "reflector": {"max_new_tokens": 12, "stop": ["\n"]},
        "train": {
            "base_model": str(base),
            "quantization": "none",
            "dtype": "float32",
            "max_length": 8192,
            "report_to": "none",
            "batch_size": 4,
            "micro_batch_tokens": 100,
            "sft": {"learning_rate": 3e-3},
        },
        "serve": {"port": 0},
        "eval": {"arms": {"alone": {"kind": "none"}, "trained": {"kind": "model", "model": "sft"}}},
        "domains": {
            "household": {
                "environment": {"name": "alfworld", "source": "generated", "receptacles": 8, "max_steps": 20},
                "loop": {"actions": 9},
                "reflector": {"view": "compact"},
                "collect": {"tasks": 8},
                "eval": {"split": "held_out", "tasks": 3},
            },
            "questions": {
                "environment": questions,
                "actor": {"kind": "react", "prompts": "cot-context", "endpoint": {"base_url": url}},
                "eval": {"split": "late"},
            },
        },
    }
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint(answers) as endpoint:
        yield endpoint


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Endpoint) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    base = save_tiny_model(tmp_path / "base")
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 8192}))
    write_questions(tmp_path / "questions")
    return write_config(tmp_path, base, server.url)


@pytest.mark.slow
def test_one_reflector_learns_from_two_environments_and_is_evaluated_in_both(
    config: Path, server: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = f"reflector.endpoint.base_url={server.url}"
    collect(["--dry-run", str(config)])
    planned = capsys.readouterr().out
    assert "domain       household\n8 tasks of split" in planned
    assert f"domain       questions\n{QUESTIONS - HELD_OUT} tasks of split 'early'" in planned

    collect([str(config), remote])
    summary = capsys.readouterr().out
    asked = len(server.requests)
    # Two pieces of advice on each failed question, both followed.
    assert f"{2 * (QUESTIONS - HELD_OUT)} rated: {2 * (QUESTIONS - HELD_OUT)} positive" in summary
    positive = [int(count) for count in re.findall(r"rated: (\d+) positive", summary)]
    assert min(positive) > 0
    collect([str(config), remote])
    assert capsys.readouterr().out == summary
    assert len(server.requests) == asked, "stored work was repeated"

    train(["sft", str(config)])
    metrics = read_metrics(Path("runs/two/sft"))
    assert metrics.measure("samples_with_duplicates") == sum(positive)
    assert [one.environment for one in metrics.training_domains or ()] == ["alfworld", "hotpotqa"]

    evaluate([str(config)])
    assert capsys.readouterr().out.splitlines()[-1] == "report: runs/two/eval/report.html"
    report = Path("runs/two/eval/report.md").read_text()
    for domain, tasks in (("household", 3), ("questions", HELD_OUT)):
        assert re.findall(rf"^\| {domain} \| (\w+) \| {tasks} \| 0 \|", report, re.MULTILINE) == ["alone", "trained"]
        assert "| sft |" in Path(f"runs/two/eval/{domain}/report.md").read_text()
    assert "hotpotqa" in Path("runs/two/eval/questions/report.md").read_text()

    assert [adapters(domain) for domain in load_domains(config)] == [{metrics.adapter_sha256}] * 2

    with pytest.raises(ConfigError, match="2 of 2 evaluation tasks were used for training"):
        evaluate([str(config), "domains.questions.eval.split=early", "eval.tasks=2"])
    retroformer(["export", str(config), "facts.jsonl", "domain=questions"])
    assert "6 cases are in facts.jsonl" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="add domain=household or domain=questions to the command"):
        retroformer(["export", str(config), "facts.jsonl"])


def test_training_tasks_of_one_domain_are_refused_in_another_with_the_same_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    games = {"environment": {"name": "alfworld", "source": "generated", "split": "train"}}
    other = {"environment": {"name": "alfworld", "source": "generated", "split": "held_out"}}
    content = {
        "run": "same",
        "collect": {"tasks": 2},
        "eval": {"tasks": 3, "arms": {"alone": {"kind": "none"}}},
        "domains": {"first": games | {"eval": {"split": "held_out"}}, "second": other | {"eval": {"split": "train"}}},
    }
    path = tmp_path / "same.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    verified = list[str]()
    monkeypatch.setattr(preflight, "open_whole_store", lambda of: verified.append(of.name) or open_whole_store(of))
    assert [len(tasks) for tasks in preflight.preflight(*load_domains(path))] == [3, 3]
    assert verified == ["same/first", "same/second"], "each once, not for each domain"
    first = load_domains(path)[0]
    trained_on = chosen_tasks(first, 2)[1].id
    store = open_store(first)
    key = Key(arm="collect", task_id=trained_on, trial=1)
    store.add_reflection(key, 0, Reflection(text=ADVICE, prompt=(), author=Author(endpoint="rule", model="rule")))
    store.close()
    with pytest.raises(ConfigError, match=f"1 of 3 evaluation tasks were used for training, such as '{trained_on}'"):
        evaluate([str(path)])


def adapters(experiment: Experiment) -> set[str | None]:
    """Return the adapters that wrote the advice of the arm `trained` in a domain."""
    store = open_store(experiment)
    try:
        return {stored.reflection.author.adapter_sha256 for stored in store.stream_reflections("eval/trained")}
    finally:
        store.close()
