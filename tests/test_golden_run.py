"""One whole run of the method, and what is read from it: report, viewer, `show`, exported cases and model cards.

Every stage is the command that ships: advice by rule, SFT, ratings, the reward model and PPO on a tiny model, and an
evaluation by the run's own server. Each test gets a copy, and counts in the store with SQL of its own.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from eval.view.index import Index
from eval.view.server import application
from eval.view.site import Site
from retroformer.__main__ import main
from retroformer.coach.stories.runs import open_runs
from retroformer.run.provenance import folder_sha256
from tests.support.endpoint import Endpoint
from tests.support.runs import HOUSEHOLD, ROOT
from tests.train.world import save_tiny_model

QUICK = {"learning_rate": 3e-3, "epochs": 1}
MODELS = {"SFT": "sft", "PPO": "ppo"}
CONFIG: dict[str, Any] = HOUSEHOLD | {
    "run": "golden",
    "loop": {"trials": 3, "actions": 7, "memory": 1, "concurrency": 8},
    "reflector": {"view": "compact", "max_new_tokens": 12},
    "collect": {"tasks": 12, "candidates": 2, "written": 8},
    "train": {
        "quantization": "none",
        "dtype": "float32",
        "max_length": 512,
        "report_to": "none",
        "weak_reward_model": "allow",
        "batch_size": 4,
        "micro_batch_tokens": 600,
        "sft": QUICK,
        "reward": QUICK,
        "ppo": {**QUICK, "batch_size": 4, "updates": 2},
    },
    "serve": {"port": 0, "dtype": "float32"},
    "eval": {
        "split": "held_out",
        "tasks": 6,
        "arms": {
            "no reflection": {"kind": "none"},
            **{arm: {"kind": "model", "model": model} for arm, model in MODELS.items()},
            "teacher": {"kind": "teacher"},
            "placebo": {"kind": "placebo", "of": "PPO"},
            "rule": {"kind": "rule"},
        },
    },
}
STAGES = ("warm", "sft", "reward", "ppo")
COMMANDS = ("collect warm", "train warm", "collect", "train sft", "train reward", "train ppo", "eval")
CONDITIONS = "SELECT record FROM condition_records JOIN arms ON conditions_sha256 = sha256"
PROGRAM = """
import sys
from importlib import import_module

for words in sys.argv[1:]:
    stage, *arguments = words.split()
    import_module(f"{stage}.__main__").main(arguments)
"""


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `golden.yaml` and its finished run."""
    folder = tmp_path_factory.mktemp("golden")
    config = CONFIG | {"train": {**CONFIG["train"], "base_model": str(save_tiny_model(folder / "tiny"))}}
    with Endpoint() as teacher:
        # The tiny model writes noise, which is never rated above zero: a model that names places writes the advice.
        config["reflector"] = CONFIG["reflector"] | {"teacher": {"base_url": teacher.url, "model": "big"}}
        (folder / "golden.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        words = [f"{command} golden.yaml" for command in COMMANDS]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        program = [sys.executable, "-c", PROGRAM, *words]
        ended = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder / "asked.json").write_text(json.dumps([body["model"] for body in teacher.requests]))
    return folder


@pytest.fixture
def run(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a copy of the run; return the run's folder."""
    shutil.copytree(golden, tmp_path / "copy", ignore=shutil.ignore_patterns("tiny"))
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    return Path("runs/golden")


def rows(run: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(run / "experience.db")) as connection:
        return connection.execute(query, values).fetchall()


def table(run: Path, heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table below this heading of the report, by the first cell of their row."""
    chapter = (run / "eval/report.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (first, *_) = (part for part in chapter.split("\n\n") if part.startswith("| "))
    lines = [line.strip("| ").split(" | ") for line in first.splitlines()]
    return {first: rest for first, *rest in lines[2:]}


def solved(run: Path, arm: str, trial: int) -> int:
    """Count the tasks that an arm, with the shared first attempt, has solved by this trial."""
    query = """SELECT count(DISTINCT task_id) FROM trajectories
               WHERE outcome = 'success' AND trial <= ? AND arm IN ('eval/trial 0', ?)"""
    return int(rows(run, query, trial, f"eval/{arm}")[0][0])


def test_the_shares_of_the_report_are_those_of_the_store(run: Path) -> None:
    shares = table(run, "Solved by trial")
    assert list(shares) == list(CONFIG["eval"]["arms"])
    for arm, cells in shares.items():
        assert [cell.split()[0] for cell in cells[:3]] == [f"{solved(run, arm, trial) / 6:.3f}" for trial in range(3)]
    assert solved(run, "rule", 2) > solved(run, "no reflection", 2)


def test_the_report_verifies_that_the_trained_adapters_wrote_the_advice(run: Path) -> None:
    served = table(run, "Served models")
    for arm, model in MODELS.items():
        sha256 = folder_sha256(run / model)
        assert served[model][0] == sha256[:12]
        assert served[model][1].startswith("yes: hash and pinned name match")
        assert rows(run, "SELECT DISTINCT adapter_sha256 FROM reflections WHERE arm = ?", f"eval/{arm}") == [(sha256,)]


def test_the_teacher_writes_while_collecting_and_in_its_own_arm_alone(run: Path) -> None:
    written = dict(rows(run, "SELECT arm, count(*) FROM reflections WHERE model = 'big' GROUP BY 1"))
    assert set(written) == {"collect", "eval/teacher"}
    assert json.loads(Path("asked.json").read_text()) == ["big"] * sum(written.values())
    for arm, model in (("collect", "big"), ("eval/teacher", "big"), ("eval/SFT", "sft")):
        ((record,),) = rows(run, f"{CONDITIONS} WHERE arm = ?", arm)
        reflector = json.loads(record)["reflector"]
        assert (reflector["endpoint"]["model"], "teacher" in reflector) == (model, False)
    assert table(run, "Who played")["teacher"][0] == "written by the teacher (`reflector.teacher`)"
    assert table(run, "How the reflections were written")["teacher"][0] == "`big`"


def test_every_number_of_the_report_names_the_code_that_computed_it(run: Path) -> None:
    chapters = json.loads((run / "eval/report.json").read_text())["chapters"]
    assert len(chapters) > 10
    for source in {chapter["source"] for chapter in chapters}:
        module, _, name = source.rpartition(".")
        assert re.search(rf"^(def|class) {name}\b", (ROOT / f"{module.replace('.', '/')}.py").read_text(), re.MULTILINE)


@pytest.fixture
def reader(run: Path, tmp_path: Path) -> Iterator[TestClient]:
    with ExitStack() as stack:
        sources = stack.enter_context(open_runs(run))
        site = Site(sources, Index(sources, tmp_path / "index.db"))
        site.index.update()
        yield stack.enter_context(TestClient(application(site, 8765), base_url="http://127.0.0.1:8765"))


def test_no_link_of_the_viewer_is_dead_and_every_piece_of_advice_is_shown(reader: TestClient, run: Path) -> None:
    waiting, pages = ["/"], dict[str, str]()
    while waiting:
        if (address := waiting.pop()) in pages:
            continue
        answer = reader.get(address)
        assert answer.status_code == 200, address
        pages[address] = answer.text
        links = {f"/{unescape(link).lstrip('/')}" for link in re.findall(r'href="([^"#]+)', answer.text)}
        # Other orders and filters of the same table are left out, and the prompts of most stories.
        waiting += [link for link in links if not re.search(r"data:|[?&](sort|show|q|outcome|rating)=|^/prompt", link)]
    everything = " ".join(unescape(re.sub(r"\s+", " ", page)) for page in pages.values())
    texts = [text for (text,) in rows(run, "SELECT DISTINCT text FROM reflections WHERE arm = 'eval/rule'")]
    assert texts
    for text in texts:
        assert " ".join(text.split()) in everything
    assert len(pages) > 60


def test_show_lists_the_stories_of_every_arm(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", str(run), "--json"])
    listed = {(row["arm"], row["task_id"]) for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert listed == {
        pair for pair in rows(run, "SELECT DISTINCT arm, task_id FROM trajectories") if pair[0] != "eval/trial 0"
    } | {(f"eval/{arm}", task) for arm in CONFIG["eval"]["arms"] for task in first_tasks(run)}


def first_tasks(run: Path) -> list[str]:
    return [task for (task,) in rows(run, "SELECT DISTINCT task_id FROM trajectories WHERE arm = 'eval/trial 0'")]


@pytest.mark.parametrize("name", ["cases.jsonl", "cases.parquet"])
def test_an_exact_export_restores_every_fact_in_another_run(run: Path, name: str) -> None:
    main(["export", "golden.yaml", name, "--exact"])
    main(["import", "golden.yaml", name, "run=again"])
    for facts in ("trajectories", "reflections"):
        query = f"SELECT arm, task_id, trial, candidate, repeat, record FROM {facts} ORDER BY 1, 2, 3, 4, 5"
        assert rows(run, query) == rows(Path("runs/again"), query)


def test_the_model_cards_name_their_adapters_and_hold_what_the_stages_measured(run: Path) -> None:
    for stage in STAGES:
        card, metrics = (run / stage / "README.md").read_text(), json.loads((run / stage / "metrics.json").read_text())
        assert card.startswith("---\nlibrary_name: peft\n")
        assert f"`{folder_sha256(run / stage)}`" in card
        (trained,) = metrics["training_domains"]
        assert f"| training_domains.{trained['environment']} | {len(trained['tasks'])} |" in card
        assert str(run.resolve()) not in card


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "reward"])
def test_a_published_adapter_loads_with_plain_peft_as_its_card_says(stage: str, run: Path, golden: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (run / stage / "README.md").read_text(), re.DOTALL)
    program = (
        f"import sys\nBASE, ADAPTER = {str(golden / 'tiny')!r}, {str(run / stage)!r}\n{code}\n"
        "import torch\nids = torch.tensor([[4, 5, 6]])\nadapted = model(input_ids=ids).logits\n"
        "with model.disable_adapter():\n    plain = model(input_ids=ids).logits\n"
        "assert not torch.equal(adapted, plain)\n"
        "assert not {'retroformer', 'train', 'trl'} & set(sys.modules)\nprint(tuple(adapted.shape))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("(1, 1)\n" if stage == "reward" else "(1, 3, 259)\n")
