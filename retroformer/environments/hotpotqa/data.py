"""HotPotQA's questions and paragraphs, from a folder or from the hub.

A folder holds these files in UTF-8, the first two, one JSON object a line, also as `.xz`:
    questions.jsonl   {"id": str, "question": str, "answer": str, "supporting_facts": [[title, number], ...], ...}
                      facts (the hub's form is accepted too) are for environment.context; `split` (train, or dev or
                      validation) is for splits by rule; other keys are ignored
    docstore.jsonl    {"title": str, "sentences": [str, ...]}                  the page's first paragraph
    splits.json       {NAME: [id, ...], ...}     optional; its splits come before those by rule; other values are notes
"""

import hashlib
import html
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from retroformer.environments.hotpotqa.docstore import FORMAT, EncyclopediaPage, page
from retroformer.environments.hotpotqa.environment import Question
from retroformer.environments.tasksets import rows_by_id
from retroformer.errors import MissingInput, UnknownTask
from retroformer.files.bounded import GIB, MIB, json_rows, parse_json, read_text
from retroformer.files.cache import key_of
from retroformer.run.provenance import files_sha256

HUB_NAME, HUB_SUBSET, HUB_SPLITS = "hotpotqa/hotpot_qa", "distractor", ("train", "validation")
_SPLIT_BY_RULE = re.compile(r"(train|validation)_([1-9][0-9]{0,6})")
_LINE_BYTES, _QUESTIONS_BYTES, _DOCSTORE_BYTES, _SPLITS_BYTES = MIB, GIB, 16 * GIB, 64 * MIB
"""Maximum sizes. HotPotQA's longest paragraph has 8 kB, a question with its ten paragraphs some 20 kB. All questions
have 70 MB, 650 MB with their contexts, and their ids 3 MB; the first paragraphs of all 5.2 million pages 3 GB."""
_ROW_FORM = (
    "there are `id`, `question` and `answer` in questions.jsonl, `title` and `sentences` in docstore.jsonl, lists of "
    "ids in splits.json"
)
_TEXTS, _FACTS = TypeAdapter(list[str]), TypeAdapter(list[tuple[str, int]])
Read = TypeVar("Read")


def _ids_of(
    name: str, splits: Mapping[str, list[str]], released: Callable[[str], list[str]], where: str, more: str = ""
) -> list[str]:
    """Return the ids of one of these splits, or of one by rule.

    `train_N` and `validation_N` are the N questions of HotPotQA's training or development set whose ids have the
    smallest sha256, in ascending order of that hash, so that everyone with the public questions gets the same ones.

    `released` returns the ids of the set `train` or `validation`; `where` names the data, and `more` ends the error.
    Raises UnknownTask, and MissingInput if the data have fewer questions of that set.
    """
    if name in splits:
        return splits[name]
    if not (match := _SPLIT_BY_RULE.fullmatch(name)):
        names = ", ".join(sorted(splits))
        raise UnknownTask(f"No split {name!r} in {where}: choose one of {names}, train_N, validation_N{more}.")
    origin, count = match[1], int(match[2])
    ids = sorted(released(origin), key=lambda question_id: hashlib.sha256(question_id.encode()).digest())
    if len(ids) < count:
        raise MissingInput(
            f"Split {name!r} needs {count} questions of HotPotQA's {origin} set, and {where} has {len(ids)}: name a "
            f"smaller split, or add the questions with `split` set to {origin!r} in questions.jsonl."
        )
    return ids[:count]


class Folder:
    """Questions and pages from the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def questions(self) -> Mapping[str, Question]:
        """All questions by id, in the order of the data. Raises MissingInput."""
        return rows_by_id(self._rows("questions.jsonl", _question, _QUESTIONS_BYTES), lambda question: question.id)

    def split(self, name: str) -> list[str]:
        """Return the ids of a split in their official order. Raises UnknownTask, MissingInput."""
        splits = {"all": list(self.questions)} | self._named_splits()
        ids = _ids_of(name, splits, self._released, str(self._folder))
        if unknown := [task_id for task_id in ids if task_id not in self.questions]:
            raise MissingInput(
                f"{len(unknown)} of the {len(ids)} questions of split {name!r} are not in {self._folder}, such as "
                f"{unknown[0]!r}: the splits belong to other data."
            )
        return ids

    def fingerprint(self, *, pages: bool) -> str:
        """Return the sha256 of the pages, which decide what Search finds, if `pages`; each question has a hash.

        Raises MissingInput.
        """
        return files_sha256({"docstore.jsonl": self._file("docstore.jsonl")}) if pages else ""

    def docstore_name(self) -> str:
        """Return a file name that changes whenever the pages do. Raises MissingInput."""
        return f"docstore-{key_of([self._file('docstore.jsonl')])}-{FORMAT}.sqlite"

    def pages(self) -> Iterator[EncyclopediaPage]:
        """Return all pages, in the order of the data. Raises MissingInput."""
        rows = self._rows("docstore.jsonl", _page, _DOCSTORE_BYTES)
        return (row for _, row in rows)

    def _released(self, origin: str) -> list[str]:
        """Return the ids of the questions of a released set, `train` or `validation`. Raises MissingInput."""
        # `dev` is the development set's other name.
        names = ("validation", "dev") if origin == "validation" else (origin,)
        rows = self._rows("questions.jsonl", lambda row: (row["id"], row.get("split")), _QUESTIONS_BYTES)
        return [question_id for _, (question_id, released) in rows if released in names]

    def _rows(self, name: str, read: Callable[[Any], Read], most_bytes: int) -> Iterator[tuple[str, Read]]:
        return json_rows(self._file(name), read, _ROW_FORM, line_bytes=_LINE_BYTES, most_bytes=most_bytes)

    def _named_splits(self) -> dict[str, list[str]]:
        path = self._folder / "splits.json"
        if not path.exists():
            return {}
        splits = parse_json(read_text(path, _SPLITS_BYTES), str(path))
        if not isinstance(splits, dict):
            raise MissingInput(f"{path} is JSON of another shape ({type(splits).__name__}): {_ROW_FORM}.")
        named = {name: ids for name, ids in splits.items() if isinstance(ids, list)}
        for name, ids in named.items():
            if not all(isinstance(id_, str) for id_ in ids):
                where = f"{name!r} contains something that is not an id"
                raise MissingInput(f"{path} is JSON of another shape ({where}): {_ROW_FORM}.")
        return named

    def _file(self, name: str) -> Path:
        for path in (self._folder / name, self._folder / f"{name}.xz"):
            if path.is_file():
                return path
        raise MissingInput(
            f"Neither {name} nor {name}.xz in {str(self._folder)!r}: set environment.data to a folder of HotPotQA data."
        )


class Hub:
    """Released dataset, with the interface of `Folder`; its pages are the ten paragraphs given with each question."""

    @cached_property
    def questions(self) -> Mapping[str, Question]:
        return {row["id"]: _question(row) for name in HUB_SPLITS for row in self._dataset[name]}

    def split(self, name: str) -> list[str]:
        splits = {origin: list(self._dataset[origin]["id"]) for origin in HUB_SPLITS}
        splits["all"] = [task_id for ids in splits.values() for task_id in ids]
        more = "; other splits come with the files of environment.data"
        return _ids_of(name, splits, splits.__getitem__, HUB_NAME, more)

    def fingerprint(self, *, pages: bool) -> str:
        """Return a hash that changes with the dataset, which contains both pages and questions."""
        return hashlib.sha256(self.docstore_name().encode()).hexdigest()

    def docstore_name(self) -> str:
        fingerprints = "".join(str(self._dataset[name]._fingerprint) for name in HUB_SPLITS)
        return f"hub-{hashlib.sha256(fingerprints.encode()).hexdigest()[:16]}-{FORMAT}.sqlite"

    def pages(self) -> Iterator[EncyclopediaPage]:
        return (page for name in HUB_SPLITS for row in self._dataset[name] for page in context_pages(row["context"]))

    @cached_property
    def _dataset(self) -> Any:
        try:
            from datasets import load_dataset

            return load_dataset(HUB_NAME, HUB_SUBSET)
        except (ImportError, OSError, ValueError) as error:
            raise MissingInput(
                f"HotPotQA cannot be downloaded from the hub ({type(error).__name__}): set environment.data to a "
                "folder with questions.jsonl[.xz] and docstore.jsonl[.xz], or install `datasets` where a hub is "
                "reachable."
            ) from error


def question_key(text: str) -> str:
    """Return a question in the form used for comparison: lower case, words only."""
    return re.sub(r"\W+", " ", text.lower()).strip()


def question_id(text: str) -> str:
    """Return an id for a question whose HotPotQA id is unknown."""
    return "q-" + hashlib.md5(question_key(text).encode(), usedforsecurity=False).hexdigest()[:20]


def context_pages(context: Mapping[str, Any]) -> Iterator[EncyclopediaPage]:
    """Yield the pages of a row of the hub's dataset: {"title": [str, ...], "sentences": [[str, ...], ...]}."""
    return (page(title, text) for title, text in zip(context["title"], context["sentences"], strict=True))


def _page(row: Mapping[str, Any]) -> EncyclopediaPage:
    return page(row["title"], _TEXTS.validate_python(row["sentences"]))


def _question(row: Mapping[str, Any]) -> Question:
    facts = row.get("supporting_facts") or []
    titles = facts["title"] if isinstance(facts, Mapping) else [title for title, _ in _FACTS.validate_python(facts)]
    # Entities in titles are resolved, as in docstore.page.
    gold = tuple(dict.fromkeys(map(html.unescape, _TEXTS.validate_python(titles))))
    if not isinstance(row["id"], str) or not isinstance(row["answer"], str):
        raise TypeError("id and answer are texts")
    return Question(row["id"], " ".join(row["question"].split()), row["answer"], gold)
