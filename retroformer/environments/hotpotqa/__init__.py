"""HotPotQA with Search, Lookup and Finish over a local docstore."""

import logging
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from retroformer.environments.extras import Extras
from retroformer.environments.hotpotqa.advice import GoldAnswerLeak, TitleHindsight
from retroformer.environments.hotpotqa.data import Folder, Hub, question_key
from retroformer.environments.hotpotqa.docstore import Docstore, build_docstore
from retroformer.environments.hotpotqa.environment import (
    Encyclopedia,
    Hotpotqa,
    HotpotqaEnvironment,
    gold_paragraphs,
    parse,
)
from retroformer.environments.hotpotqa.metrics import RETURNS
from retroformer.environments.tasksets import row_sha256
from retroformer.errors import MissingInput, UnknownTask
from retroformer.files.cache import cache_folder
from retroformer.method.protocols import ReturnOf
from retroformer.method.records import Task, Tool, Trajectory

__all__ = ["HotpotqaTaskset", "Section", "extras", "taskset"]

Section = Hotpotqa


def _tools(section: Any) -> tuple[Tool, ...]:
    """Return the actions as tools; with the gold paragraphs in the question, only the answer."""
    search = _tool("Search", "title", "Search the page with this title and show its first sentences.")
    lookup = _tool("Lookup", "keyword", "Show the next sentence with this keyword on the page that was found last.")
    finish = _tool("Finish", "answer", "End the task with a short answer: a name, a date, a number, yes or no.")
    return (finish,) if section.context else (search, lookup, finish)


def _tool(name: str, argument: str, description: str) -> Tool:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return Tool(name=name, description=description, parameters=parameters, form=f"{name}[{{{argument}}}]")


_LOGGER = logging.getLogger(__name__)


class HotpotqaTaskset:
    """Questions of one split; all its environments share one open docstore."""

    def __init__(self, section: Hotpotqa, source: Folder | Hub) -> None:
        self._section, self._source = section, source

    def tasks(self) -> tuple[Task, ...]:
        """Return all questions of the split, in order; a task's id is the question's.

        With `environment.context`, only those whose gold pages are in the data: the others cannot be asked with their
        context. The number left out is logged as a warning.

        Raises MissingInput, and UnknownTask if there is no such split.
        """
        split = self._section.split
        ids = self._source.split(split)
        if self._section.context:
            ids = self._with_context(ids)
        questions = self._source.questions
        return tuple(
            Task(id=task_id, environment="hotpotqa", split=split, sha256=row_sha256(questions[task_id]))
            for task_id in ids
        )

    def fingerprint(self) -> str:
        """Return the sha256 of the pages if they come from the data; each task has a hash. Raises MissingInput."""
        return self._source.fingerprint(pages=self._section.docstore == "data" or self._section.context)

    def ids_by_question(self) -> dict[str, str]:
        """Return the task id of every question of the data, by `question_key`. Raises MissingInput."""
        return {question_key(question.text): task_id for task_id, question in self._source.questions.items()}

    def answer(self, task: Task) -> str:
        """Return the gold answer of a question of the data, of any split. Raises UnknownTask, MissingInput."""
        questions = self._source.questions
        if task.id not in questions:
            raise UnknownTask(f"No question {task.id!r} in the data.")
        return questions[task.id].answer

    def environment(self) -> HotpotqaEnvironment:
        """Return an environment for any question of the data; the first on a machine builds the index.

        Raises MissingInput.
        """
        section = self._section
        contexts = self._docstore if section.context else None
        questions, pages = self._source.questions, self._encyclopedia
        return HotpotqaEnvironment(questions, pages, section.reward, section.max_steps, contexts, section.sentences)

    def _with_context(self, ids: list[str]) -> list[str]:
        questions = self._source.questions
        kept = [task_id for task_id in ids if gold_paragraphs(questions[task_id], self._docstore)]
        split, missing = self._section.split, len(ids) - len(kept)
        if missing == len(ids) > 0:
            raise MissingInput(
                f"The gold pages of none of the {missing} questions of split {split!r} are in the data: "
                "set environment.context=false, or name another split."
            )
        if missing:
            reason = "their gold pages are not known or not in the data"
            _LOGGER.warning("%d of the %d questions of split %r are left out: %s.", missing, len(ids), split, reason)
        return kept

    @cached_property
    def _docstore(self) -> Docstore:
        path = cache_folder() / "hotpotqa" / self._source.docstore_name()
        return Docstore(build_docstore(self._source.pages(), path))

    @cached_property
    def _encyclopedia(self) -> Encyclopedia:
        section = self._section
        if section.docstore == "data":
            return self._docstore
        from retroformer.environments.hotpotqa.wikipedia import MediaWiki, Wikipedia

        folder = cache_folder() / "hotpotqa"
        return Wikipedia(MediaWiki(section.wikipedia, section.contact, section.requests_per_second, folder))


def taskset(section: Hotpotqa, seed: int = 0) -> HotpotqaTaskset:
    """Return the questions that a section describes, from its folder or from the hub; `seed` is unused."""
    return HotpotqaTaskset(section, Folder(section.data) if section.data else Hub())


def answer_return(name: str, gold: Callable[[Task], str]) -> ReturnOf:
    """Return the function that computes this return of an attempt, 0 without an answer. It raises as `gold` does."""

    def score(attempt: Trajectory) -> float:
        last = parse(attempt.steps[-1].action) if attempt.steps else None
        if last is None or last.verb != "finish":
            return 0.0
        return float(RETURNS[name](last.argument, gold(attempt.task)))

    return score


def _return_of(name: str, section: Any, seed: int) -> ReturnOf:
    return answer_return(name, taskset(section, seed).answer)


extras = Extras(
    tools=_tools,
    leak_check=lambda section, seed: GoldAnswerLeak(taskset(section, seed).answer),
    hindsight=lambda section: TitleHindsight,
    # The paper's F1 is the graded version of its success, exact match.
    returns={name: partial(_return_of, name) for name in RETURNS} | {"shaped": partial(_return_of, "f1")},
    data_licence="HotPotQA: CC BY-SA 4.0.",
)
