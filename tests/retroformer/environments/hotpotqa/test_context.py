"""Tests of gold paragraphs before the question, over invented pages, and of which questions have them."""

import json
import logging
from pathlib import Path

import pytest

from retroformer.environments import hotpotqa
from retroformer.environments.hotpotqa.data import Folder
from retroformer.environments.hotpotqa.environment import Hotpotqa
from retroformer.errors import MissingInput, UnknownTask
from retroformer.method.records import Task

PAGES = [
    {"title": "Harrow (film)", "sentences": ["Harrow is a film by Ada Lind.", " It was shot in Norway."]},
    {"title": "Ada Lind", "sentences": ["Ada Lind was born in Bergen."]},
    {"title": "&amp;Co", "sentences": ["&Co is a band."]},
]
QUESTIONS = [
    {
        "id": "born",
        "question": "Where was the director of Harrow born?",
        "answer": "Bergen",
        "supporting_facts": [["Harrow (film)", 0], ["Harrow (film)", 1], ["Ada Lind", 0]],
    },
    {"id": "unknown", "question": "Is it?", "answer": "yes", "supporting_facts": []},
    {"id": "band", "question": "What is &Co?", "answer": "a band", "supporting_facts": {"title": ["&amp;Co"]}},
    {"id": "absent", "question": "Who?", "answer": "She", "supporting_facts": [["Ada Lind", 0], ["harrow (film)", 0]]},
    {"id": "old", "question": "When?", "answer": "1971"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    (tmp_path / "docstore.jsonl").write_text("\n".join(map(json.dumps, PAGES)))
    (tmp_path / "splits.json").write_text(json.dumps({"bare": ["unknown", "old"]}))
    return tmp_path


def questions(folder: Path, *, context: bool = True, split: str = "all") -> hotpotqa.HotpotqaTaskset:
    return hotpotqa.taskset(Hotpotqa(data=folder, split=split, context=context))


def test_every_gold_paragraph_stands_once_before_the_question(folder: Path) -> None:
    opening = questions(folder).environment().reset(Task(id="born", environment="hotpotqa", split="all"))
    assert opening.observation == (
        "Context: Harrow is a film by Ada Lind. It was shot in Norway.\n"
        "Ada Lind was born in Bergen.\n"
        "Question: Where was the director of Harrow born?"
    )


def test_one_step_suffices_to_answer_and_is_the_only_one(folder: Path) -> None:
    environment = hotpotqa.taskset(Hotpotqa(data=folder, split="all", context=True, max_steps=1)).environment()
    task = Task(id="born", environment="hotpotqa", split="all")
    environment.reset(task)
    assert environment.step("Finish[Bergen]").success
    environment.reset(task)
    assert environment.step("Search[Ada Lind]").truncated


def test_questions_without_gold_pages_are_left_out_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert [task.id for task in questions(folder).tasks()] == ["born", "band"]
    assert caplog.messages == [
        "3 of the 5 questions of split 'all' are left out: their gold pages are not known or not in the data."
    ]
    assert len(questions(folder, context=False).tasks()) == 5


def test_a_split_without_any_gold_page_is_refused(folder: Path) -> None:
    with pytest.raises(MissingInput, match="none of the 2 questions of split 'bare'"):
        questions(folder, split="bare").tasks()


@pytest.mark.parametrize("name", ["unknown", "absent", "old"])
def test_a_question_without_gold_pages_cannot_be_asked_with_its_context(folder: Path, name: str) -> None:
    task = Task(id=name, environment="hotpotqa", split="all")
    with pytest.raises(UnknownTask, match=f"gold pages of question '{name}'"):
        questions(folder).environment().reset(task)
    assert questions(folder, context=False).environment().reset(task).observation.startswith("Question: ")


@pytest.mark.parametrize(
    "facts", [[["one", 2, 3]], "Ada Lind", ["A1"], {"title": "Ada Lind"}, {"title": [["Ada Lind", 0]]}, [[1, 0]]]
)
def test_supporting_facts_of_another_shape_are_a_fault_of_the_file(folder: Path, facts: object) -> None:
    row = {"id": "x", "question": "Who?", "answer": "She", "supporting_facts": facts}
    (folder / "questions.jsonl").write_text(json.dumps(row))
    with pytest.raises(MissingInput, match=r"questions\.jsonl is JSON of another shape"):
        Folder(folder).split("all")
    (folder / "docstore.jsonl").write_text('{"title": "Ada Lind", "sentences": "She sang."}')
    with pytest.raises(MissingInput, match=r"Line 1 of .*docstore\.jsonl is JSON of another shape \(it: Input should"):
        list(Folder(folder).pages())
