"""HotPotQA's questions and paragraphs, from a folder or from the hub.

A folder holds, each also as `.xz` and in UTF-8, one JSON object a line:
    questions.jsonl   {"id": str, "question": str, "answer": str, "supporting_facts": [[title, number], ...], ...}
                      facts, in the hub's form as well, are for environment.context; other keys are not read
    docstore.jsonl    {"title": str, "sentences": [str, ...]}                  the page's first paragraph
    splits.json       {NAME: [id, ...], ...}                                   optional; not a list: a note
"""

import hashlib
import html
import json
import lzma
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from retroformer.environments.hotpotqa.docstore import FORMAT, Page, page
from retroformer.environments.hotpotqa.environment import Question
from retroformer.errors import MissingInput, UnknownTask
from retroformer.provenance import files_sha256

ALL = "all"
HUB_NAME, HUB_SUBSET = "hotpotqa/hotpot_qa", "distractor"
_HUB_SPLITS = ("train", "validation")
_NO_WORD = re.compile(r"\W+")


class Folder:
    """Files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def questions(self) -> Mapping[str, Question]:
        """All questions by id, in the order of the data. Raises MissingInput."""
        path = self._file("questions.jsonl")
        with _shape_of(path):
            return {row["id"]: _question(row) for row in _rows(path)}

    def split(self, name: str) -> list[str]:
        """The ids of a split in their official order. Raises UnknownTask, MissingInput."""
        splits = {ALL: list(self.questions)} | self._named_splits()
        if name not in splits:
            raise UnknownTask(f"No split {name!r} in {self._folder}: known are {', '.join(sorted(splits))}.")
        if unknown := [task_id for task_id in splits[name] if task_id not in self.questions]:
            raise MissingInput(
                f"{len(unknown)} of the {len(splits[name])} questions of split {name!r} are not in {self._folder}, "
                f"{unknown[0]!r} for one: the splits belong to other data."
            )
        return splits[name]

    def fingerprint(self, *, pages: bool) -> str:
        """The sha256 of the questions, and of the pages where asked. Raises MissingInput."""
        names = ("questions.jsonl", *(("docstore.jsonl",) if pages else ()))
        return files_sha256({name: self._file(name) for name in names})

    def docstore_name(self) -> str:
        """A file name that changes whenever the pages do. Raises MissingInput."""
        digest = hashlib.sha256(self._file("docstore.jsonl").read_bytes()).hexdigest()
        return f"docstore-{digest[:16]}-{FORMAT}.sqlite"

    def pages(self) -> Iterator[Page]:
        """All pages, in the order of the data. Raises MissingInput."""
        path = self._file("docstore.jsonl")
        with _shape_of(path):
            for row in _rows(path):
                yield page(row["title"], row["sentences"])

    def _named_splits(self) -> dict[str, list[str]]:
        path = self._folder / "splits.json"
        try:
            splits = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise MissingInput(f"{path} is damaged ({error}): get a fresh copy.") from error
        with _shape_of(path):
            return {name: ids for name, ids in splits.items() if isinstance(ids, list)}

    def _file(self, name: str) -> Path:
        for path in (self._folder / name, self._folder / f"{name}.xz"):
            if path.is_file():
                return path
        raise MissingInput(
            f"Neither {name} nor {name}.xz in {str(self._folder)!r}: set environment.data to a folder of HotPotQA data."
        )


class Hub:
    """The released dataset, as `Folder`; its pages are the ten paragraphs that come with each question."""

    @cached_property
    def questions(self) -> Mapping[str, Question]:
        return {row["id"]: _question(row) for name in _HUB_SPLITS for row in self._dataset[name]}

    def split(self, name: str) -> list[str]:
        dataset = self._dataset
        if name == ALL:
            return list(self.questions)
        if name not in _HUB_SPLITS:
            raise UnknownTask(
                f"No split {name!r} in {HUB_NAME}: known are {', '.join((ALL, *_HUB_SPLITS))}; "
                "other splits come with the files of environment.data."
            )
        return list(dataset[name]["id"])

    def fingerprint(self, *, pages: bool) -> str:
        """A hash that changes with the dataset, whose pages and questions come together."""
        return hashlib.sha256(self.docstore_name().encode()).hexdigest()

    def docstore_name(self) -> str:
        fingerprints = "".join(str(self._dataset[name]._fingerprint) for name in _HUB_SPLITS)
        return f"hub-{hashlib.sha256(fingerprints.encode()).hexdigest()[:16]}-{FORMAT}.sqlite"

    def pages(self) -> Iterator[Page]:
        return (one for name in _HUB_SPLITS for row in self._dataset[name] for one in context_pages(row["context"]))

    @cached_property
    def _dataset(self) -> Any:
        try:
            from datasets import load_dataset

            return load_dataset(HUB_NAME, HUB_SUBSET)
        except (ImportError, OSError, ValueError) as error:
            raise MissingInput(
                f"HotPotQA cannot be had from the hub ({type(error).__name__}): set environment.data to a folder with "
                "questions.jsonl[.xz] and docstore.jsonl[.xz], or install `datasets` where a hub is reachable."
            ) from error


def question_key(text: str) -> str:
    """A question as it is compared with others: lower case, words only."""
    return _NO_WORD.sub(" ", text.lower()).strip()


def question_id(text: str) -> str:
    """The id of a question whose HotPotQA id is not known."""
    return "q-" + hashlib.md5(question_key(text).encode(), usedforsecurity=False).hexdigest()[:20]


def context_pages(context: Mapping[str, Any]) -> Iterator[Page]:
    """The pages of a row of the hub's dataset: {"title": [str, ...], "sentences": [[str, ...], ...]}."""
    return (page(title, text) for title, text in zip(context["title"], context["sentences"], strict=True))


def _question(row: Mapping[str, Any]) -> Question:
    facts = row.get("supporting_facts") or []
    titles = facts["title"] if isinstance(facts, Mapping) else [title for title, _ in facts]
    # As docstore.page does: entities in titles are resolved.
    gold = tuple(dict.fromkeys(html.unescape(title) for title in titles))
    return Question(row["id"], " ".join(row["question"].split()), row["answer"], gold)


@contextmanager
def _shape_of(path: Path) -> Iterator[None]:
    """What is read inside has the keys that this module's docstring names. Raises MissingInput where it has not."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MissingInput(
            f"{path} is JSON of another shape ({type(error).__name__}: {error}): there are `id`, `question` and "
            "`answer` in questions.jsonl, `title` and `sentences` in docstore.jsonl, lists of ids in splits.json."
        ) from error


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file. Raises MissingInput where it is damaged."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield json.loads(line)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise MissingInput(f"{path} is damaged ({error}): get a fresh copy.") from error
