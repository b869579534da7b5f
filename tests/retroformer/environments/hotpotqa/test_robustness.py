"""Robustness tests: HotPotQA answers any input as documented, and quickly."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retroformer.environments.hotpotqa import taskset
from retroformer.environments.hotpotqa.docstore import Docstore, build_docstore, page
from retroformer.environments.hotpotqa.environment import (
    INVALID_ACTION,
    NO_MORE_RESULTS,
    NO_PAGE,
    Encyclopedia,
    Hotpotqa,
    HotpotqaEnvironment,
    Question,
)
from retroformer.environments.hotpotqa.wikipedia import MediaWiki, Wikipedia
from retroformer.environments.pool import EnvironmentPool
from retroformer.method.records import Task
from tests.support.hotpotqa import SHARED, index_of_the_data
from tests.support.mediawiki import Article, Wiki
from tests.support.odd_actions import every_episode, odd_actions

TASK = Task(id="a", environment="hotpotqa", split="all")
PAGES = {"Bergen": "Bergen is a city in Norway.", "A": "A b c.", "Search": "Or and not near title text."}
VERBS = ("Search", "Lookup", "Finish", "Thought 1: ")
GOOD = ("Search[Bergen]", "Lookup[city]", "Lookup[is]", "Finish[Bergen]")
ANSWERS = {
    "thought": re.compile(r"OK\.", re.DOTALL),
    "invalid": re.compile(re.escape(INVALID_ACTION)),
    "no page": re.compile(re.escape(NO_PAGE)),
    "no more": re.compile(re.escape(NO_MORE_RESULTS)),
    "result": re.compile(r"\(Result \d+ / \d+\) .+"),
    "not found": re.compile(r"Could not find \[[^\x00-\x1f]{1,203}\]\. Similar: \[.*\]"),
    "judged": re.compile("Answer is (IN)?CORRECT"),
}


@pytest.fixture
def small(tmp_path: Path) -> Docstore:
    return Docstore(build_docstore((page(title, [text]) for title, text in PAGES.items()), tmp_path / "small.sqlite"))


@pytest.fixture
def wiki() -> Iterator[Wiki]:
    with Wiki({title: Article(text) for title, text in PAGES.items()}) as running:
        yield running


def kinds_of_answers(encyclopedia: Encyclopedia, examples: int) -> Counter[str]:
    """Play episodes of odd actions, check that each answer is documented, and return the number of each answer."""
    environment = HotpotqaEnvironment({"a": Question("a", "Where?", "Bergen")}, encyclopedia, "f1", 25)
    kinds = Counter[str]()

    @settings(every_episode, max_examples=examples)
    @given(first=st.sampled_from(("Search[Bergen]", "thought")), actions=odd_actions(VERBS, GOOD))
    def play(first: str, actions: list[str]) -> None:
        environment.reset(TASK)
        environment.step(first)
        for action in actions:
            answer = environment.step(action)
            answer.observation.encode()
            kind = next((kind for kind, form in ANSWERS.items() if form.fullmatch(answer.observation)), None)
            if kind is None:
                article = encyclopedia.find(answer.observation.partition(" is ")[0])
                assert answer.observation in PAGES.values() or article, answer.observation[:200]
                kind = "page"
            assert 0 <= answer.reward <= 1
            kinds[kind] += 1
            if answer.over:
                break

    play()
    return kinds


def test_odd_actions_have_documented_answers(small: Docstore) -> None:
    assert set(kinds_of_answers(small, 300)) == {*ANSWERS, "page"}


def test_odd_actions_do_not_break_a_wiki(wiki: Wiki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    encyclopedia = Wikipedia(MediaWiki(wiki.address, "me@example.org", 1e6, tmp_path))
    assert kinds_of_answers(encyclopedia, 200)["not found"] > 20
    assert all(len(asked.parameters.get("titles", "").encode()) <= 255 for asked in wiki.asked)
    assert all("|" not in asked.parameters.get("titles", "") for asked in wiki.asked)


@pytest.mark.parametrize(
    "action",
    [
        "Search[" + "the band of new york " * 50_000,
        "Search[" + "the " * 250_000,
        "Search[" + "x" * 1_000_000 + "]",
        "Search[" + " ".join(f"word{number}" for number in range(100_000)) + "]",
        "action" + " " * 1_000_000 + "x",
        "thought" + "1" * 1_000_000 + "x",
        "Finish[" + "new york " * 100_000 + "]",
        "Search[" + "[" * 1_000_000,
    ],
    ids=lambda action: action[:12],
)
def test_a_megabyte_takes_no_longer_than_a_long_question(
    action: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(index_of_the_data(tmp_path_factory.getbasetemp())))
    source = taskset(Hotpotqa(data=SHARED))
    environment = source.environment()
    environment.reset(source.tasks()[0])
    started = time.process_time()
    answer = environment.step(action)
    assert time.process_time() - started < 2.0
    assert len(answer.observation) < 1000


def test_megabytes_and_unpaired_surrogates_pass_through_a_worker_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "questions.jsonl").write_text('{"id": "a", "question": "Where?", "answer": "Bergen"}')
    (tmp_path / "docstore.jsonl").write_text(json.dumps({"title": "Bergen", "sentences": ["Bergen is a city."]}))

    async def play() -> list[str]:
        section = Hotpotqa(data=tmp_path, split="all", max_steps=50)
        async with EnvironmentPool(section, 0, 1, 60) as pool, pool.episode(TASK) as episode:
            await episode.reset()
            actions = (
                "Search[" + "\U0001f600" * 1_000_000,
                "Search[\ud800\x00\n]",
                "\x00" * 1_000_000,
                "Search[bergen]",
            )
            return [(await episode.step(action)).observation for action in actions]

    assert asyncio.run(play()) == [
        "Could not find [" + "\U0001f600" * 200 + "...]. Similar: []",
        "Could not find [\ufffd]. Similar: []",
        INVALID_ACTION,
        "Bergen is a city.",
    ]
