"""Tests of live Wikipedia and its API etiquette, over a real HTTP server that speaks the same JSON."""

import asyncio
import base64
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.environments.hotpotqa import taskset
from retroformer.environments.hotpotqa.environment import NO_MORE_RESULTS, Hotpotqa, HotpotqaEnvironment
from retroformer.environments.hotpotqa.wikipedia import MediaWiki, Turns, Wikipedia, sentences
from retroformer.environments.pool import EnvironmentPool, PooledEpisode
from retroformer.errors import ConfigError, EnvironmentFailure
from retroformer.method.records import Task
from tests.support.mediawiki import Article, Behaviour, Wiki
from tests.support.raw_server import RawServer, Request, Write, http

CONTACT = "somebody@example.org"
PATIENCE_SECONDS = 20.0
"""Patience of a client unless a test sets another."""
BERGEN = (
    "Bergen is a city in Norway. It lies on the west coast.\nIt has seven mountains, as Dr. Lind said.\n\n\n"
    "== History ==\nBergen was founded in 1070 by King Olav III.\n\n\n=== Fires ===\nIt burned in 1702."
)
ARTICLES = {
    "Bergen": Article(BERGEN),
    "Bergen, Norway": Article(redirect="Bergen"),
    "Lark": Article("Lark may refer to:\nLark (bird)\nLark (poem)", disambiguation=True),
    "Lark (bird)": Article("A lark is a bird."),
    "Lark (poem)": Article("The Lark is a poem by Ada Lind."),
    "Ada Lind": Article("Ada Lind (1931 - 2004) was a director."),
    "Nothing": Article(""),
    "User:Ada": Article("A page about me."),
    "AC/DC": Article("AC/DC are a band."),
}
MISBEHAVIOURS = [behaviour for behaviour in Behaviour if behaviour not in (Behaviour.WELL, Behaviour.SILENT)]
FINAL = [Behaviour.FORBIDDEN, Behaviour.REFUSED, Behaviour.OTHER_JSON]
"""Behaviours that a retry cannot fix."""
TASK = Task(id="a", environment="hotpotqa", split="all")


@pytest.fixture
def wiki() -> Iterator[Wiki]:
    with Wiki(ARTICLES) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "questions.jsonl").write_text('{"id": "a", "question": "Is Bergen in Norway?", "answer": "yes"}')
    return tmp_path


def section(folder: Path, address: str, **knobs: object) -> Hotpotqa:
    settings = {"data": folder, "split": "all", "max_steps": 50, "docstore": "wikipedia", "wikipedia": address}
    return Hotpotqa.model_validate(settings | {"contact": CONTACT, "requests_per_second": 50} | knobs)


def ask(folder: Path, wiki: Wiki, **knobs: object) -> HotpotqaEnvironment:
    environment = taskset(section(folder, wiki.address, **knobs)).environment()
    environment.reset(TASK)
    return environment


def observed(environment: HotpotqaEnvironment, *actions: str) -> list[str]:
    return [environment.step(action).observation for action in actions]


def client(folder: Path, wiki: Wiki, patience_seconds: float = PATIENCE_SECONDS, per_second: float = 50.0) -> MediaWiki:
    return MediaWiki(wiki.address, CONTACT, per_second, folder / "kept", patience_seconds)


@pytest.mark.parametrize("contact", ["", "me"])
def test_wikipedia_is_not_asked_without_a_contact(tmp_path: Path, contact: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("run: live\nenvironment: {name: hotpotqa, docstore: wikipedia}\n")
    with pytest.raises(
        ConfigError, match=r"environment: Wikipedia requires a contact of every program: set environment"
    ):
        load(config, [f"environment.contact={contact!r}"])
    assert load(config, ["environment.contact=https://example.org/me"]).environment.name == "hotpotqa"


@pytest.mark.parametrize(
    "key", ["wikipedia=file:///etc/passwd", "contact=me@x.org\\r\\nCookie: a", "requests_per_second=0"]
)
def test_an_invalid_address_and_a_contact_of_two_lines_are_refused(tmp_path: Path, key: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("run: live\nenvironment: {name: hotpotqa}\n")
    name, _, value = key.partition("=")
    with pytest.raises(ConfigError, match=f"environment.{name}: "):
        load(config, [f'environment.{name}="{value}"'])


def test_search_shows_the_first_paragraph_and_lookup_reads_the_whole_article(folder: Path, wiki: Wiki) -> None:
    assert observed(ask(folder, wiki), "Search[Bergen]", "Lookup[it]", "Lookup[it]", "Lookup[it]", "Lookup[1070]") == [
        "Bergen is a city in Norway. It lies on the west coast.",
        "(Result 1 / 4) Bergen is a city in Norway.",
        "(Result 2 / 4) It lies on the west coast.",
        "(Result 3 / 4) It has seven mountains, as Dr. Lind said.",
        "(Result 1 / 1) Bergen was founded in 1070 by King Olav III.",
    ]
    assert observed(ask(folder, wiki), "Search[bergen]", "Lookup[History]")[1] == NO_MORE_RESULTS


def test_redirects_are_followed_and_the_case_does_not_matter(folder: Path, wiki: Wiki) -> None:
    paragraph = "Bergen is a city in Norway. It lies on the west coast."
    paragraphs = observed(ask(folder, wiki), "Search[Bergen, Norway]", "Search[bergen, NORWAY]", "Search[ADA_LIND]")
    assert paragraphs == [paragraph, paragraph, "Ada Lind (1931 - 2004) was a director."]


def test_an_ambiguous_title_is_not_found_and_its_meanings_are_listed_as_similar(folder: Path, wiki: Wiki) -> None:
    assert observed(ask(folder, wiki), "Search[lark]") == [
        "Could not find [lark]. Similar: ['Lark (bird)', 'Lark (poem)']"
    ]


@pytest.mark.parametrize(
    ("entity", "similar"),
    [
        ("Ada", "['Ada Lind', 'Lark (poem)']"),
        ("User:Ada", "['Ada Lind', 'Lark (poem)']"),
        ("fr:Bergen", "['Bergen']"),
        ("Special:Random", "[]"),
        ("Bergen#History", "['Bergen']"),
        ("Ada|Bergen", "['Bergen', 'Ada Lind', 'Lark (poem)']"),
        ("Nothing", "[]"),
        ("-insource:/bergen/", "['Bergen']"),
        ("?!", "[]"),
        ("Q" * 300, "[]"),
    ],
)
def test_a_page_that_is_not_an_article_is_not_found(folder: Path, wiki: Wiki, entity: str, similar: str) -> None:
    shown = entity if len(entity) <= 200 else entity[:200] + "..."
    assert observed(ask(folder, wiki), f"Search[{entity}]") == [f"Could not find [{shown}]. Similar: {similar}"]
    searched = [asked.parameters["srsearch"] for asked in wiki.asked if "srsearch" in asked.parameters]
    assert all(len(words) <= 250 and words.replace(" ", "").isalnum() for words in searched)


def test_requests_identify_the_program_and_the_contact(folder: Path, wiki: Wiki) -> None:
    observed(ask(folder, wiki), "Search[Bergen]")
    (asked,) = wiki.asked
    assert asked.user_agent.startswith("Retroformer/0.")
    assert f"({CONTACT})" in asked.user_agent
    assert asked.parameters["maxlag"] == "5"


def test_a_second_run_needs_no_request_even_if_the_wiki_is_gone(folder: Path) -> None:
    actions = ("Search[Bergen]", "Search[lark]", "Search[bergen, norway]", "Search[no such page]")
    with Wiki(ARTICLES) as wiki:
        first = observed(ask(folder, wiki), *actions)
        requests = len(wiki.asked)
        assert observed(ask(folder, wiki), *actions) == first
        assert len(wiki.asked) == requests > 0
    assert observed(ask(folder, wiki), *actions) == first


@pytest.mark.parametrize("behaviour", MISBEHAVIOURS)
def test_a_failing_wiki_is_a_failure_and_never_a_page_that_was_not_found(
    folder: Path, wiki: Wiki, behaviour: Behaviour
) -> None:
    wiki.behaviour, wiki.retry_after = behaviour, "0.05"
    environment = ask(folder, wiki)
    with pytest.raises(EnvironmentFailure, match="The wiki"):
        environment.step("Search[Bergen]")
    if behaviour is not Behaviour.NO_EXTRACT:
        assert len(wiki.asked) == (1 if behaviour in FINAL else 3)
        wiki.behaviour = Behaviour.WELL
        time.sleep(0 if behaviour in FINAL else 0.1)
        fresh = ask(folder, wiki, requests_per_second=50)
        assert observed(fresh, "Search[Bergen]")[0].startswith("Bergen is a city"), "nothing wrong was kept"


def test_a_wiki_that_never_answers_costs_no_more_than_the_patience(folder: Path, wiki: Wiki) -> None:
    wiki.behaviour = Behaviour.SILENT
    started = time.monotonic()
    with pytest.raises(EnvironmentFailure, match=r"could not be asked \(it gave no answer"):
        Wikipedia(client(folder, wiki, patience_seconds=0.3)).find("Bergen")
    assert time.monotonic() - started < PATIENCE_SECONDS


def test_an_unreachable_wiki_is_a_failure(folder: Path) -> None:
    with Wiki(ARTICLES) as wiki:
        pass
    with pytest.raises(EnvironmentFailure, match=r"could not be asked \(.*refused"):
        Wikipedia(client(folder, wiki)).find("Bergen")


@pytest.mark.parametrize("behaviour", [Behaviour.TOO_MANY, Behaviour.UNAVAILABLE, Behaviour.LAGGED])
def test_a_busy_wiki_is_asked_again_after_the_requested_pause(folder: Path, wiki: Wiki, behaviour: Behaviour) -> None:
    wiki.retry_after = "1"
    wiki.script.append(behaviour)
    assert observed(ask(folder, wiki), "Search[Ada Lind]") == ["Ada Lind (1931 - 2004) was a director."]
    first, second = wiki.asked
    assert second.at - first.at >= 1.0


def test_a_long_pause_requested_by_a_wiki_holds_for_all_processes(folder: Path, wiki: Wiki) -> None:
    wiki.retry_after = "1000"
    wiki.script.append(Behaviour.TOO_MANY)
    with pytest.raises(EnvironmentFailure, match=r"may not be asked for another (1000|9\d\d) s: it answered 429"):
        ask(folder, wiki).step("Search[Ada Lind]")
    with pytest.raises(EnvironmentFailure, match=r"may not be asked for another \d+ s\."):
        ask(folder, wiki).step("Search[Bergen]")
    assert len(wiki.asked) == 1


def test_all_processes_together_respect_the_rate_limit(folder: Path, wiki: Wiki) -> None:
    """Six searches without a hit make 12 requests, a page and a search each: at 20 per second at least 0.55 s."""

    async def play() -> tuple[float, list[str]]:
        asking = section(folder, wiki.address, requests_per_second=20)
        async with EnvironmentPool(asking, 0, 3, 60) as pool, AsyncExitStack() as episodes:
            playing = [await episodes.enter_async_context(pool.episode(TASK)) for _ in range(3)]
            await asyncio.gather(*(episode.reset() for episode in playing))

            async def two(episode: PooledEpisode, first: int) -> list[str]:
                numbers = (first, first + 3)
                return [(await episode.step(f"Search[{number * 1111}]")).observation for number in numbers]

            # Measured from when all processes are ready: on a busy machine the first request may arrive late.
            began = time.time()
            answers = await asyncio.gather(*(two(episode, place) for place, episode in enumerate(playing, start=1)))
            return began, [answer for pair in answers for answer in pair]

    began, answers = asyncio.run(play())
    assert sorted(answers) == [f"Could not find [{number * 1111}]. Similar: []" for number in range(1, 7)]
    assert len(wiki.asked) == 12
    assert max(asked.at for asked in wiki.asked) - began >= 0.5


def test_a_failure_in_a_worker_process_is_an_invalid_attempt_s_cause(folder: Path, wiki: Wiki) -> None:
    wiki.behaviour = Behaviour.FORBIDDEN

    async def play() -> None:
        async with EnvironmentPool(section(folder, wiki.address), 0, 1, 60) as pool, pool.episode(TASK) as episode:
            assert (await episode.reset()).observation == "Question: Is Bergen in Norway?"
            await episode.step("Search[Bergen]")

    with pytest.raises(EnvironmentFailure, match="answered 403"):
        asyncio.run(play())


def test_a_password_in_the_wikis_address_is_sent_by_a_worker_process_and_kept_nowhere(folder: Path) -> None:
    def answer(request: Request, write: Write) -> None:
        good = b'{"batchcomplete": true, "query": {"search": [], "pages": [{"title": "Bergen", "missing": true}]}}'
        write(http("200 OK", good) if len(server.requests) < 3 else http("403 Forbidden", b"{}"))

    async def play(address: str) -> None:
        async with EnvironmentPool(section(folder, address), 0, 1, 60) as pool, pool.episode(TASK) as episode:
            await episode.reset()
            await episode.step("Search[Bergen]")
            await episode.step("Search[Oslo]")

    with RawServer(answer) as server:
        with pytest.raises(EnvironmentFailure) as failure:
            asyncio.run(play(f"http://me:pass%2Fword-marked@{server.host}/w/api.php"))
        assert f"The wiki at http://me:***@{server.host}/w/api.php answered 403" in str(failure.value)
        assert len(server.requests) == 3
    sent = {request.headers["authorization"].removeprefix("Basic ") for request in server.requests}
    assert {base64.b64decode(request) for request in sent} == {b"me:pass/word-marked"}
    kept = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"marked" in path.read_bytes()]


def test_a_damaged_cache_is_named(folder: Path, wiki: Wiki) -> None:
    observed(ask(folder, wiki), "Search[Bergen]")
    (folder / "cache" / "hotpotqa" / "wikipedia.sqlite").write_bytes(b"This is no database." * 100)
    with pytest.raises(EnvironmentFailure, match=r"cannot be used .* delete those that begin with `wikipedia`"):
        ask(folder, wiki)


def test_a_cache_that_cannot_be_written_is_named(folder: Path, wiki: Wiki) -> None:
    (folder / "kept").write_text("a file where the folder should be")
    with pytest.raises(EnvironmentFailure, match=r"kept cannot be used .*File exists"):
        client(folder, wiki)


def test_a_clock_that_was_set_back_causes_no_endless_wait(tmp_path: Path) -> None:
    path = tmp_path / "turns.sqlite"
    turns = Turns(path, "wiki", 10)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO turn VALUES ('wiki', ?)", (time.time() + 1e8,))
    database.close()
    assert turns.take(1.0) == 0


def test_turns_at_different_servers_are_independent(tmp_path: Path) -> None:
    Turns(tmp_path / "turns.sqlite", "one", 1).postpone(100)
    assert Turns(tmp_path / "turns.sqlite", "two", 1).take(0.0) == 0
    assert Turns(tmp_path / "turns.sqlite", "one", 1).take(50.0) == pytest.approx(100, abs=5)


def test_the_gold_paragraphs_stay_those_of_the_data(folder: Path, wiki: Wiki) -> None:
    (folder / "questions.jsonl").write_text(
        '{"id": "a", "question": "Is Bergen?", "answer": "yes", "supporting_facts": [["Bergen", 0]]}'
    )
    (folder / "docstore.jsonl").write_text('{"title": "Bergen", "sentences": ["Bergen of 2017."]}')
    environment = taskset(section(folder, wiki.address, context=True)).environment()
    assert environment.reset(TASK).observation == "Context: Bergen of 2017.\nQuestion: Is Bergen?"
    assert wiki.asked == []


@pytest.mark.parametrize(
    ("paragraph", "parts"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        (
            "J. K. Lind of the U.S. Navy met Dr. Who. They left.",
            ["J. K. Lind of the U.S. Navy met Dr. Who.", "They left."],
        ),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        (
            "It cost 3.5 million, i.e. a lot. émile paid. Émile left.",
            ["It cost 3.5 million, i.e. a lot. émile paid.", "Émile left."],
        ),
        ("", []),
        ("." * 5000, ["." * 5000]),
    ],
)
def test_sentences_end_where_they_seem_to(paragraph: str, parts: list[str]) -> None:
    assert sentences(paragraph) == parts


@pytest.mark.network
@pytest.mark.skipif("RETROFORMER_CONTACT" not in os.environ, reason="RETROFORMER_CONTACT names nobody to Wikipedia")
def test_the_real_wikipedia_answers_like_the_test_server(tmp_path: Path) -> None:
    wiki = MediaWiki(Hotpotqa().wikipedia, os.environ["RETROFORMER_CONTACT"], 1, tmp_path)
    article = Wikipedia(wiki).find("nobel prize IN physics")
    assert article is not None
    assert article.title == "Nobel Prize in Physics"
    assert len(article.sentences) > len(sentences(article.paragraph)) > 0
    assert Wikipedia(wiki).find("Mercury") is None
    assert "Mercury" not in Wikipedia(wiki).similar("Mercury")


def test_a_client_without_patience_left_takes_a_free_turn(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "turns.sqlite", "wiki", per_second=0.01)
    assert turns.take(-1.0) == 0
    assert 0 < turns.take(-1.0) <= 100
