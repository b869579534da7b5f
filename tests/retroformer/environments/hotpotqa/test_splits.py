"""Tests of the splits that a rule defines: by the sha256 of the ids, from a folder and from the hub's dataset."""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from retroformer.environments.hotpotqa.data import Folder, Hub
from retroformer.environments.hotpotqa.environment import Hotpotqa
from retroformer.environments.registry import fingerprint, taskset
from retroformer.errors import MissingInput, UnknownTask
from retroformer.method.records import Task
from tests.support.data import needs_data
from tests.support.hotpotqa import SHARED
from tests.support.runs import ROOT

# The sha256 of a, b, c and d begin with ca97, 3e23, 2e7d and 18ac; those of x and y with 2d71 and a1fc.
ORIGINS = {"a": "train", "x": "dev", "b": "train", "c": "train", "y": "validation", "d": "train"}
GUIDE = (ROOT / "docs/environments.md").read_text()


def folder_of(path: Path, origins: dict[str, str | None], splits: dict[str, list[str]] | None = None) -> Folder:
    """Return a folder with one question for each id."""
    rows = [
        {"id": name, "question": f"{name}?", "answer": "yes"} | ({"split": origin} if origin else {})
        for name, origin in origins.items()
    ]
    (path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if splits is not None:
        (path / "splits.json").write_text(json.dumps(splits))
    return Folder(path)


def test_a_split_by_rule_has_the_ids_with_the_smallest_sha256(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, dict(ORIGINS))
    assert folder.split("train_3") == ["d", "c", "b"]
    assert folder.split("validation_2") == ["x", "y"]


def test_the_order_of_the_file_does_not_matter(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, dict(reversed(ORIGINS.items())))
    assert folder.split("train_3") == ["d", "c", "b"]


def test_a_list_in_splits_json_takes_precedence(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, dict(ORIGINS), {"train_3": ["a", "b"]})
    assert folder.split("train_3") == ["a", "b"]
    assert folder.split("train_2") == ["d", "c"]


def test_a_question_that_is_added_leaves_the_conditions_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "docstore.jsonl").write_text('{"title": "A", "sentences": ["A is a letter."]}')
    section = Hotpotqa(data=tmp_path, split="all")

    def facts(origins: dict[str, str | None]) -> tuple[str, Task]:
        folder_of(tmp_path, origins)
        return fingerprint(section), taskset(section).tasks()[0]

    assert facts({"a": None}) == facts({"a": None, "b": None})
    assert facts({"a": None})[1].sha256
    with (tmp_path / "questions.jsonl").open("a") as file:
        file.write('{"id": "a", "question": "a?", "answer": "no"}')
    with pytest.raises(MissingInput, match=r"Line 2 of .* Line 1 of .* has the id 'a', too"):
        taskset(section).tasks()


def test_too_few_questions_are_refused_with_their_number(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, dict(ORIGINS))
    with pytest.raises(MissingInput, match=r"needs 5 questions of HotPotQA's train set, and .* has 4"):
        folder.split("train_5")


def test_questions_that_do_not_say_their_set_are_in_no_split_by_rule(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": None, "b": "train"})
    assert folder.split("train_1") == ["b"]
    with pytest.raises(MissingInput, match="has 0"):
        folder.split("validation_1")


@pytest.mark.parametrize("name", ["train_0", "train_", "train_03", "train_3 ", "dev_3", "validation_10000000"])
def test_other_names_are_unknown(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownTask, match="all, train_N, validation_N"):
        folder_of(tmp_path, dict(ORIGINS)).split(name)


def test_the_hub_s_dataset_has_the_same_splits() -> None:
    hub = Hub()
    hub.__dict__["_dataset"] = {"train": {"id": ["a", "b", "c", "d"]}, "validation": {"id": ["y", "x"]}}
    assert hub.split("train_3") == ["d", "c", "b"]
    assert hub.split("validation_1") == ["x"]
    assert hub.split("validation") == ["y", "x"]
    with pytest.raises(UnknownTask, match="train_N"):
        hub.split("dev_3")


def test_the_program_of_the_guide_makes_a_folder_of_the_released_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, ids in (("hotpot_train_v1.1.json", "abcd"), ("hotpot_dev_distractor_v1.json", "xy")):
        rows = [
            {
                "_id": id_,
                "question": f"{id_}?",
                "answer": "no",
                "level": "hard",
                "type": "bridge",
                "supporting_facts": [[f"Page {id_}", 0]],
                "context": [[f"Page {id_}", ["One.", " Two."]], ["Other", ["Three."]]],
            }
            for id_ in ids
        ]
        Path(name).write_text(json.dumps(rows))
    (program,) = re.findall(r"^### Splits of HotPotQA.*?^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    exec(program, {})
    folder = Folder(tmp_path)
    assert folder.split("train_3") == ["d", "c", "b"]
    assert folder.split("validation_2") == ["x", "y"]
    assert folder.questions["a"].gold == ("Page a",)
    assert {(page.title, page.paragraph) for page in folder.pages()} == {
        ("Other", "Three."),
        *((f"Page {id_}", "One. Two.") for id_ in "abcdxy"),
    }


def ids_sha256(ids: Iterable[str]) -> str:
    """Return the sha256 of a list of ids, each followed by a newline."""
    return hashlib.sha256("".join(f"{id_}\n" for id_ in ids).encode()).hexdigest()


@needs_data("hotpotqa")
def test_the_guide_states_the_hashes_of_the_test_data(tmp_path: Path) -> None:
    row = re.compile(r"^\| `(\w+)` (by rule|in its `splits.json`).*\| `([0-9a-f]{64})` \|$", re.MULTILINE)
    stated = {(name, how): digest for name, how, digest in row.findall(GUIDE)}
    (tmp_path / "questions.jsonl.xz").symlink_to(SHARED / "questions.jsonl.xz")
    by_rule, named = Folder(tmp_path), Folder(SHARED)
    assert stated == {
        ("train_2000", "by rule"): ids_sha256(by_rule.split("train_2000")),
        ("validation_100", "by rule"): ids_sha256(by_rule.split("validation_100")),
        ("train_3000", "in its `splits.json`"): ids_sha256(named.split("train_3000")),
        ("validation_100", "in its `splits.json`"): ids_sha256(named.split("validation_100")),
    }
    assert set(by_rule.split("train_2000")).isdisjoint(by_rule.split("validation_100"))
