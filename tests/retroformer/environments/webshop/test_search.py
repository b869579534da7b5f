"""Tests of Lucene's BM25 over an index on disk."""

import math
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.environments.webshop.search import IndexWriter, SearchIndex, length_code, length_of, words
from retroformer.environments.webshop.shop import Shop
from retroformer.files.cache import build_once, open_read_only
from tests.support.webshop import SHARED, index_of_the_data, recorded

VOCABULARY = [f"{first}{second}{third}" for first in "bdfk" for second in "aou" for third in "lmnrt"]


def write_index(path: Path, documents: list[tuple[str, str]]) -> Path:
    def write(database: sqlite3.Connection) -> None:
        writer = IndexWriter(database)
        for name, contents in documents:
            writer.add(name, contents)
        writer.finish()

    return build_once(path, write)


@pytest.fixture
def opened() -> Iterator[list[sqlite3.Connection]]:
    connections: list[sqlite3.Connection] = []
    yield connections
    for connection in connections:
        connection.close()


def test_rare_words_weigh_more_long_texts_less_and_ties_go_by_name(
    tmp_path: Path, opened: list[sqlite3.Connection]
) -> None:
    documents = [("d", "oak lamp"), ("c", "oak lamp"), ("b", "oak oak"), ("a", "oak" + " table" * 60), ("e", "sofa")]
    opened.append(open_read_only(write_index(tmp_path / "index.sqlite", documents)))
    results = SearchIndex(opened[0]).search("Oak lamps for the")
    assert [documents[number][0] for number in results] == ["c", "d", "b", "a"]
    assert SearchIndex(opened[0]).search("the for") == SearchIndex(opened[0]).search("") == []
    assert SearchIndex(opened[0]).search("oak", count=2) == [2, 1]


def plainly(documents: list[tuple[str, str]], query: str) -> list[float]:
    """Return the score of every document by the formula, in double precision, ignoring documents without words."""
    texts = [Counter(words(contents)) for _, contents in documents]
    filled = sum(bool(text) for text in texts)
    average = sum(text.total() for text in texts) / filled
    scores = [0.0] * len(texts)
    for word, times in Counter(words(query)).items():
        having = sum(word in text for text in texts)
        rarity = math.log(1 + (filled - having + 0.5) / (having + 0.5))
        for number, text in enumerate(texts):
            length = length_of(length_code(text.total()))
            scores[number] += times * rarity * text[word] / (text[word] + 0.9 * (0.6 + 0.4 * length / average))
    return scores


def test_the_index_on_disk_ranks_like_the_plain_formula(tmp_path: Path, opened: list[sqlite3.Connection]) -> None:
    generator = random.Random(3)
    documents = [
        (f"B{number:05}", " ".join(generator.choices(VOCABULARY, k=generator.randint(1, 90)))) for number in range(150)
    ]
    path = write_index(tmp_path / "index.sqlite", documents)
    opened += [open_read_only(path), open_read_only(path)]
    first, again = map(SearchIndex, opened)
    for _ in range(40):
        query = " ".join(generator.choices(VOCABULARY, k=generator.randint(1, 12)))
        results = first.search(query)
        assert results == again.search(query)
        scores = plainly(documents, query)
        assert len(results) == min(50, sum(score > 0 for score in scores))
        ranked = sorted(scores, reverse=True)
        assert [scores[number] for number in results] == pytest.approx(ranked[: len(results)], rel=1e-6)


def test_an_index_is_built_once_and_completely(tmp_path: Path) -> None:
    path = write_index(tmp_path / "new" / "index.sqlite", [("a", "oak")])
    assert write_index(path, [("b", "never written")]) == path
    with closing(open_read_only(path)) as database:
        assert SearchIndex(database).search("oak") == [0]

    def fail(_: sqlite3.Connection) -> None:
        raise KeyError("damaged")

    with pytest.raises(KeyError):
        build_once(tmp_path / "new" / "other.sqlite", fail)
    assert {file.name for file in path.parent.iterdir() if not file.name.endswith(".lock")} == {"index.sqlite"}


def test_a_length_is_stored_in_one_byte_as_in_lucene() -> None:
    assert [length_of(length_code(length)) for length in (0, 1, 39, 40, 41, 57, 100, 1000)] == [
        *(0, 1, 39, 40, 40, 56, 96, 984)
    ]
    assert length_code(2**31 - 1) == 255


def test_every_recorded_ranking_of_lucene_is_reproduced(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(index_of_the_data(tmp_path_factory)))
    shop = Shop(SHARED)
    reference = recorded("lucene_reference.jsonl.xz")
    assert len(reference) > 1000
    assert [line["q"] for line in reference if list(shop.search(line["q"])) != line["asins"]] == []
