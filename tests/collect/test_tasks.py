"""Which tasks are collected on: in which order, and that no round meets those of the round before."""

from pathlib import Path

import pytest

from collect.tasks import ordered_tasks, tasks_of_round
from retroformer.errors import MissingInput
from tests.support.runs import open_page, write_page

NOBODY = "http://127.0.0.1:1/v1"


def chosen(folder: Path, *overrides: str) -> list[str]:
    page = open_page(write_page(folder, NOBODY), "collect.tasks=5", *overrides)
    return [task.id for task in tasks_of_round(page.experiment)]


def test_each_round_takes_the_next_tasks(tmp_path: Path) -> None:
    official = [task.id for task in ordered_tasks(open_page(write_page(tmp_path, NOBODY)).experiment)]
    assert chosen(tmp_path, "collect.skip=2") == official[2:7]
    assert chosen(tmp_path, "collect.skip=2", "round=3") == official[12:17]


def test_a_shuffled_order_is_a_function_of_the_seed(tmp_path: Path) -> None:
    shuffled = chosen(tmp_path, "collect.order=shuffled")
    assert shuffled == chosen(tmp_path, "collect.order=shuffled")
    assert shuffled != chosen(tmp_path)
    assert shuffled != chosen(tmp_path, "collect.order=shuffled", "seed=7")
    assert not set(shuffled) & set(chosen(tmp_path, "collect.order=shuffled", "round=2"))


def test_a_split_without_so_many_tasks_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        MissingInput, match=r"no tasks beyond the first \d+: lower collect.skip, collect.tasks or round"
    ):
        chosen(tmp_path, "round=1000000")
