"""Selection of the tasks to collect on: their order, and that no round repeats the tasks of an earlier round."""

from contextlib import closing
from pathlib import Path

import pytest

from collect.tasks import ordered_tasks, refuse_repeated, tasks_of_round
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Key
from retroformer.run.store import open_store
from tests.support.characters import attempt_at
from tests.support.facts import add_trajectory
from tests.support.runs import open_config, write_config

NOBODY = "http://127.0.0.1:1/v1"


def chosen(folder: Path, *overrides: str) -> list[str]:
    config = open_config(write_config(folder, NOBODY), "collect.tasks=5", *overrides)
    return [task.id for task in tasks_of_round(config.experiment)]


def test_each_round_takes_the_next_tasks(tmp_path: Path) -> None:
    official = [task.id for task in ordered_tasks(open_config(write_config(tmp_path, NOBODY)).experiment)]
    assert chosen(tmp_path) == official[:5]
    assert chosen(tmp_path, "round=3") == official[10:15]


def test_a_shuffled_order_is_a_function_of_the_seed(tmp_path: Path) -> None:
    shuffled = chosen(tmp_path, "collect.order=shuffled")
    assert shuffled == chosen(tmp_path, "collect.order=shuffled")
    assert shuffled != chosen(tmp_path)
    assert shuffled != chosen(tmp_path, "collect.order=shuffled", "seed=7")
    assert not set(shuffled) & set(chosen(tmp_path, "collect.order=shuffled", "round=2"))


def test_a_split_with_too_few_tasks_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"no tasks beyond the first \d+: lower collect.tasks or round"):
        chosen(tmp_path, "round=1000000")


def test_a_later_round_does_not_collect_what_an_earlier_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path, "http://127.0.0.1:1/v1")
    second = open_config(path, "round=2", "collect.tasks=4").experiment
    with closing(open_store(second)) as store:
        tasks = tasks_of_round(second)
        refuse_repeated(second, store, tasks)
        add_trajectory(store, Key(arm="collect", task_id=tasks[1].id), attempt_at(tasks[1]))
        with pytest.raises(
            ConfigError, match=r"1 of 4 tasks of round 2 were collected in round 1, .*set collect.tasks"
        ):
            refuse_repeated(second, store, tasks)
