"""Tests of the index: it follows the facts, and losing it or stopping it half-way loses nothing."""

import threading
from contextlib import closing
from pathlib import Path

import pytest

from eval.view.index import Index
from eval.view.pages.stories import StoryFilter, story_page
from eval.view.site import Site
from retroformer.coach.stories.runs import open_runs
from retroformer.errors import StoreError
from retroformer.method.records import Key, Usage
from retroformer.run.arm_names import COLLECT
from retroformer.run.store import NewInvalid, NewReflection, NewTrajectory, Store
from tests.support.stories import DOOR, advice, attempt


def total(index: Index, **chosen: str) -> int:
    return story_page(index, StoryFilter.of(chosen)).total


def add(run_folder: Path, *facts: NewTrajectory | NewReflection | NewInvalid) -> None:
    with closing(Store(f"sqlite:///{run_folder}/experience.db", "doors")) as store:
        store.declare(COLLECT, {"loop": {"memory": 3}})
        store.add(facts)


def test_only_stories_with_new_facts_are_indexed_again(site: Site, run_folder: Path) -> None:
    index = site.index
    assert index.update() == 0
    third = DOOR.model_copy(update={"id": "door-3"})
    add(run_folder, NewTrajectory(Key(arm=COLLECT, task_id="door-3"), attempt("sleep", task=third)))
    assert index.update() == 1
    assert (total(index), total(index, q="sleep"), total(index, outcome="failed")) == (4, 1, 1)
    retry = Key(arm=COLLECT, task_id="door-3", trial=1)
    add(
        run_folder,
        NewReflection(retry, 0, advice("Wake up.")),
        NewTrajectory(retry, attempt("rise", solved=True, task=third)),
    )
    assert index.update() == 1
    assert (total(index), total(index, q="sleep rise wake"), total(index, outcome="failed")) == (4, 1, 0)


def test_a_task_that_only_the_infrastructure_failed_is_in_the_table(site: Site, run_folder: Path) -> None:
    add(run_folder, NewInvalid(Key(arm=COLLECT, task_id="door-4"), "ServiceError: no answer", Usage()))
    assert site.index.update() == 1
    (row,) = story_page(site.index, StoryFilter(outcome="invalid")).rows
    assert (row["task"], row["attempts"], row["first"]) == ("door-4", 0, None)
    assert site.index.update() == 0


def test_an_infrastructure_failure_that_was_repeated_does_not_make_a_failed_task_invalid(
    site: Site, run_folder: Path
) -> None:
    task, key = DOOR.model_copy(update={"id": "door-5"}), Key(arm=COLLECT, task_id="door-5")
    add(run_folder, NewInvalid(key, "ServiceError: no answer", Usage()), NewTrajectory(key, attempt("sit", task=task)))
    site.index.update()
    assert total(site.index, outcome="failed", q="sit") == 1
    retry = key.model_copy(update={"trial": 1})
    add(run_folder, NewReflection(retry, 0, advice("Stand.")), NewInvalid(retry, "ServiceError: no answer", Usage()))
    site.index.update()
    (row,) = story_page(site.index, StoryFilter(outcome="invalid")).rows
    assert (row["task"], row["first"], row["last"]) == ("door-5", 0, 0)


def test_an_index_that_cannot_be_written_is_one_sentence(site: Site, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_text("no database" * 1000)
    with pytest.raises(StoreError, match=r"The index .*broken.db cannot be used \(file is not a database\)"):
        Index(site.sources, tmp_path / "broken.db")


def test_an_index_that_was_stopped_or_lost_is_finished_later(site: Site, tmp_path: Path) -> None:
    stopped = threading.Event()
    stopped.set()
    index = Index(site.sources, tmp_path / "another.db")
    assert index.update(stopped) == 0
    assert total(index) == 0
    assert Index(site.sources, tmp_path / "another.db").update() == 3
    assert total(index) == 3


def test_an_index_of_another_version_is_built_anew(site: Site) -> None:
    with site.index.connect() as connection:
        connection.execute("PRAGMA user_version = 99")
    index = Index(site.sources, site.index.path)
    assert total(index) == 0
    assert index.update() == 3


def test_a_store_that_was_replaced_by_another_with_as_many_facts_is_indexed_anew(tmp_path: Path) -> None:
    """Both stores have one story of one fact in an arm of theirs."""
    for words, arm, name in (("sleep", COLLECT, "door-1"), ("rise", COLLECT, "door-1"), ("sit", "recorded", "door-2")):
        (tmp_path / "experience.db").unlink(missing_ok=True)
        with closing(Store(f"sqlite:///{tmp_path}/experience.db", "doors")) as store:
            task = DOOR.model_copy(update={"id": name})
            store.add([NewTrajectory(Key(arm=arm, task_id=name), attempt(words, task=task))])
        with open_runs(tmp_path) as sources:
            index = Index(sources, tmp_path / "index.db")
            assert index.update() == 1
            assert (total(index), total(index, q=words)) == (1, 1)
