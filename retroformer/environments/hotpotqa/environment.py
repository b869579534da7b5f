"""Question answering with three actions: Search[entity], Lookup[keyword], Finish[answer] (ReAct, section 3.1).

An oracle judges answers: `Answer is CORRECT` and the transition's `success` mean that the answer equals the gold answer
once both are normalised (exact match). The papers retry on this signal, so the agent sees it unless `evaluator.kind`
says otherwise; without a gold answer there is no such signal.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from retroformer.config.sections.base import Positive
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.environments.hotpotqa.docstore import Docstore, EncyclopediaPage
from retroformer.environments.hotpotqa.metrics import RETURNS, exact_match
from retroformer.environments.section import EnvironmentSection
from retroformer.environments.tasksets import EPISODE_OVER, not_reset, row_of
from retroformer.errors import UnknownTask
from retroformer.method.records import Task, Transition

_WEB_ADDRESS = r"^https?://[^\s?#]+$"


def _web_address(url: SecretUrl) -> SecretUrl:
    # pydantic's own pattern would turn the URL into plain text.
    if not re.match(_WEB_ADDRESS, url.secret_url()):
        raise PydanticCustomError("string_pattern_mismatch", f"String should match pattern '{_WEB_ADDRESS}'")
    return url


class Hotpotqa(EnvironmentSection):
    success: ClassVar[str] = "exact match with the gold answer"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    name: Literal["hotpotqa"] = "hotpotqa"
    data: Path | None = None
    """Folder with questions.jsonl[.xz], docstore.jsonl[.xz] and optionally splits.json; default: the hub's dataset."""
    split: str = "validation_100"
    """Name of a split in splits.json, or `all`, or `train_N` or `validation_N`: the N questions of HotPotQA's training
    or development set whose ids have the smallest sha256."""
    reward: Literal["f1", "em"] = "f1"
    """Return of an answer: the paper's F1 without stop words, or exact match."""
    context: bool = False
    """If true, the gold paragraphs precede the question (CoT with ground-truth context in Reflexion, section 4.2).
    Questions of the split whose gold pages are unknown or missing in the data are then left out."""
    sentences: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of a page's first sentences that Search shows: 5 in ReAct and in Reflexion's first version; 0 shows the
    whole first paragraph, as in the official code."""
    docstore: Literal["data", "wikipedia"] = "data"
    """Source of pages for Search: the data, or live Wikipedia over the network, with a cache on disk. An attempt is
    invalid if Wikipedia cannot be reached, or asks to wait for more than 20 s."""
    wikipedia: Annotated[SecretUrl, AfterValidator(_web_address)] = SecretUrl("https://en.wikipedia.org/w/api.php")
    """URL of the MediaWiki API, for docstore wikipedia."""
    contact: Annotated[str, Field(pattern=r"^[!-~]*$")] = ""
    """Your mail address or web page, which Wikipedia requires of every program; mandatory for docstore wikipedia."""
    requests_per_second: Annotated[float, Field(gt=0, le=50)] = 2.0
    """Maximum request rate to the wiki, over all processes of this machine."""
    max_steps: Positive = 6
    """Actions after which an episode is truncated."""

    def accepts_logs_rated_by(self, name: str) -> bool:
        """Return True for both versions of F1 if the reward is F1, else for exact match only."""
        return name in ("f1", "f1_with_stop_words") if self.reward == "f1" else name == "em"

    @model_validator(mode="after")
    def _require_contact(self) -> Self:
        if self.docstore == "wikipedia" and "@" not in self.contact and "." not in self.contact:
            raise PydanticCustomError(
                "environment",
                "Wikipedia requires a contact of every program: set environment.contact to your mail address or web "
                "page",
            )
        return self


Verb = Literal["search", "lookup", "finish", "think", "invalid"]

# Possessive: a megabyte of blanks after the word must not be retried at every position.
_LABEL = re.compile(r"^action\b *+\d*+ *+: *+", re.IGNORECASE)
_THOUGHT = re.compile(r"^(think|thought)\b *+\d*+ *+[:\[]", re.IGNORECASE)
_CALL = re.compile(r"^(search|lookup|finish)\s*\[", re.IGNORECASE)
_QUOTES = "\"'`\u201c\u201d\u2018\u2019"
_LONGEST = 10_000
_UNPRINTABLE = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ") | dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
"""Blanks for control characters, and U+FFFD for lone surrogates, which no database accepts."""


class Action(NamedTuple):
    verb: Verb
    argument: str = ""


def parse(text: str) -> Action:
    """Return the action that a line asks for; `invalid` if it asks for none of the three.

    Tolerated: any case of the verb, blanks anywhere, quotes or backticks around the whole, an `Action 3:` label, a
    missing last bracket, and anything after the bracket that closes the first call (`Search[A], Search[B]` is A).
    Brackets inside the argument must be balanced. A call without an argument is invalid. Only the first 10,000
    characters of an action are read, and control characters in it become blanks.
    """
    text = _LABEL.sub("", text.strip()[:_LONGEST].translate(_UNPRINTABLE).strip("`*> "))
    if _THOUGHT.match(text):
        return Action("think")
    if text[:1] in _QUOTES:
        text = text.strip(_QUOTES)
    call = _CALL.match(text)
    if call is None:
        return Action("invalid")
    # The argument ends before the bracket that closes the call, if any does.
    depth, end = 1, len(text)
    for place in range(call.end(), len(text)):
        depth += (text[place] == "[") - (text[place] == "]")
        if depth == 0:
            end = place
            break
    argument = " ".join(text[call.end() : end].split())
    verbs: dict[str, Verb] = {"search": "search", "lookup": "lookup", "finish": "finish"}
    return Action(verbs[call[1].lower()], argument) if argument else Action("invalid")


def unquoted(argument: str) -> str:
    """Return the argument without the quotes around it, if any; `"Awaken, My Love!"` is also a title as written."""
    inside = len(argument) > 2 and argument[0] in _QUOTES and argument[-1] in _QUOTES
    return argument[1:-1].strip() if inside else argument


INVALID_ACTION = "Invalid Action. Valid Actions are Lookup[<topic>] Search[<topic>] and Finish[<answer>]."
NO_PAGE = "No page has been found yet, so there is nothing to look in. Use Search[<topic>] first."
NO_MORE_RESULTS = "No more results."
NOT_FOUND = "Could not find "
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

    def find(self, entity: str) -> EncyclopediaPage | None:
        """Return the page that this entity names. Raises EnvironmentFailure."""
        ...

    def similar(self, query: str, count: int = 5) -> list[str]:
        """Return titles of pages about these words, best first. Raises EnvironmentFailure."""
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

    def reset(self, task: Task) -> Transition:
        """Start the question of this task.

        Raises UnknownTask if it, or its gold pages to be shown, are missing, and EnvironmentFailure if it has changed.
        """
        question = row_of(self._questions, task)
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
        self._steps, self._results_shown, self._keyword = 0, 0, ""
        self._page: EncyclopediaPage | None = None
        self._last = Transition(observation=opening)
        return self._last

    def step(self, action: str) -> Transition:
        """Execute one action; every action costs a step, including thoughts and invalid ones.

        Finish terminates, with the reward; otherwise the last of `max_steps` actions truncates.
        """
        if self._question is None:
            raise not_reset()
        if self._last.over:
            return self._last.model_copy(update={"observation": EPISODE_OVER, "reward": 0.0})
        self._steps += 1
        match parse(action):
            case "finish", answer:
                self._last = self._finish(self._question, answer)
                return self._last
            case "search", entity:
                observation = self._search(entity)
            case "lookup", keyword:
                observation = self._lookup(keyword)
            case verb, _:
                observation = "OK." if verb == "think" else INVALID_ACTION
        self._last = Transition(observation=observation, truncated=self._steps >= self._max_steps)
        return self._last

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
        reward = float(RETURNS[self._reward](answer, question.answer))
        verdict = "Answer is CORRECT" if correct else "Answer is INCORRECT"
        return Transition(observation=verdict, reward=reward, terminated=True, success=correct)


def gold_paragraphs(question: Question, pages: Docstore) -> tuple[str, ...]:
    """Return the paragraphs with the supporting facts, each once; empty if any is unknown or missing."""
    gold_pages = [pages.titled(title) for title in question.gold]
    return () if None in gold_pages else tuple(page.paragraph for page in gold_pages if page is not None)
