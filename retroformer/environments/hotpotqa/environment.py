"""Question answering with three actions: Search[entity], Lookup[keyword], Finish[answer] (ReAct, section 3.1).

An oracle judges answers: `Answer is CORRECT` and the transition's `success` mean that the answer equals the gold answer
once both are normalised (exact match). The papers retry on this signal, so the agent sees it unless `evaluator.kind`
says otherwise; without a gold answer there is no such signal.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from retroformer.environments.hotpotqa.action import Action, parse, unquoted
from retroformer.environments.hotpotqa.docstore import Docstore, Page
from retroformer.environments.hotpotqa.metrics import exact_match, f1_without_stop_words
from retroformer.errors import EnvironmentFailure, UnknownTask
from retroformer.records import Task, Transition

INVALID_ACTION = "Invalid Action. Valid Actions are Lookup[<topic>] Search[<topic>] and Finish[<answer>]."
NO_PAGE = "No page has been found yet, so there is nothing to look in. Use Search[<topic>] first."
NO_MORE_RESULTS = "No more results."
NOT_FOUND = "Could not find "
EPISODE_OVER = "The episode is over."
_SHOWN_CHARACTERS = 200
"""Maximum number of characters quoted back of an entity that was not found."""


class Question(NamedTuple):
    id: str
    text: str
    answer: str
    gold: tuple[str, ...] = ()
    """Titles of the pages that hold the supporting facts; empty if unknown."""


class Encyclopedia(Protocol):
    """Source of the pages for Search."""

    def find(self, entity: str) -> Page | None:
        """Return the page that this entity names. Raises EnvironmentFailure if the source cannot be reached."""
        ...

    def similar(self, query: str, count: int = 5) -> list[str]:
        """Return titles of pages about these words, best first. Raises EnvironmentFailure if this is impossible."""
        ...


class HotpotqaEnvironment:
    """Questions over one encyclopedia; with `contexts`, the gold paragraphs precede each question.

    sentences: number of a page's first sentences that Search shows; 0 shows the whole first paragraph.
    """

    def __init__(
        self,
        questions: Mapping[str, Question],
        encyclopedia: Encyclopedia,
        reward: Literal["f1", "em"],
        max_steps: int,
        contexts: Docstore | None = None,
        sentences: int = 0,
    ) -> None:
        self._questions, self._encyclopedia, self._contexts = questions, encyclopedia, contexts
        self._reward, self._max_steps, self._sentences = reward, max_steps, sentences
        self._question: Question | None = None
        self._last = Transition(observation="")
        self._forget()

    def _forget(self) -> None:
        self._steps = 0
        self._page: Page | None = None
        self._keyword = ""
        self._results_shown = 0

    def reset(self, task: Task) -> Transition:
        """Start the question of this task.

        Raises:
            UnknownTask: the data lack this question, or its gold pages when they are to be shown.
        """
        if task.id not in self._questions:
            raise UnknownTask(f"No question {task.id!r} in this HotPotQA data: --list prints the ids.")
        question = self._questions[task.id]
        opening = f"Question: {question.text}"
        if self._contexts is not None:
            paragraphs = gold_paragraphs(question, self._contexts)
            if not paragraphs:
                raise UnknownTask(
                    f"The gold pages of question {task.id!r} are not known or not in this HotPotQA data: "
                    "with environment.context it cannot be asked."
                )
            opening = "\n".join((f"Context: {paragraphs[0]}", *paragraphs[1:], opening))
        self._question = question
        self._forget()
        self._last = Transition(observation=opening)
        return self._last

    def step(self, action: str) -> Transition:
        """Execute one action; every action costs a step, including thoughts and invalid ones.

        Finish terminates, with the reward; otherwise the last of `max_steps` actions truncates.
        """
        if self._question is None:
            raise EnvironmentFailure("No question was asked yet: reset comes before the first step.")
        if self._last.over:
            return self._last.model_copy(update={"observation": EPISODE_OVER, "reward": 0.0})
        self._steps += 1
        parsed = parse(action)
        if parsed.verb == "finish":
            self._last = self._finish(self._question, parsed.argument)
        else:
            self._last = Transition(observation=self._observe(parsed), truncated=self._steps >= self._max_steps)
        return self._last

    def _observe(self, action: Action) -> str:
        match action.verb:
            case "search":
                return self._search(action.argument)
            case "lookup":
                return self._lookup(action.argument)
            case "think":
                return "OK."
            case _:
                return INVALID_ACTION

    def _search(self, entity: str) -> str:
        plain = unquoted(entity)
        page = self._encyclopedia.find(entity) or (self._encyclopedia.find(plain) if plain != entity else None)
        if page is None:
            shown = entity if len(entity) <= _SHOWN_CHARACTERS else entity[:_SHOWN_CHARACTERS] + "..."
            return f"{NOT_FOUND}[{shown}]. Similar: {self._encyclopedia.similar(entity)}"
        self._page, self._keyword, self._results_shown = page, "", 0
        return "".join(page.sentences[: self._sentences]).strip() if self._sentences else page.paragraph

    def _lookup(self, keyword: str) -> str:
        """Return the next sentence with the keyword on the last page found; a new keyword starts from the top."""
        if self._page is None:
            return NO_PAGE
        keyword = unquoted(keyword).casefold()
        if keyword != self._keyword:
            self._keyword, self._results_shown = keyword, 0
        results = [sentence.strip() for sentence in self._page.sentences if keyword in sentence.casefold()]
        if self._results_shown >= len(results):
            return NO_MORE_RESULTS
        self._results_shown += 1
        return f"(Result {self._results_shown} / {len(results)}) {results[self._results_shown - 1]}"

    def _finish(self, question: Question, answer: str) -> Transition:
        correct = exact_match(answer, question.answer)
        reward = float(correct) if self._reward == "em" else f1_without_stop_words(answer, question.answer)
        verdict = "Answer is CORRECT" if correct else "Answer is INCORRECT"
        return Transition(observation=verdict, reward=reward, terminated=True, success=correct)


def gold_paragraphs(question: Question, pages: Docstore) -> tuple[str, ...]:
    """Return the paragraphs with the supporting facts, each once; empty if any is unknown or missing."""
    gold_pages = [pages.titled(title) for title in question.gold]
    return () if None in gold_pages else tuple(page.paragraph for page in gold_pages if page is not None)
