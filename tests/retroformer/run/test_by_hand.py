"""Tests of play by hand: the same environment that rollouts use, through standard input and output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.__main__ import main
from retroformer.environments import alfworld
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.registry import taskset
from retroformer.errors import ConfigError, MissingInput

SECTION = Alfworld(name="alfworld", source="generated", max_steps=30)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "toy.yaml"
    path.write_text("run: toy\nenvironment: {name: alfworld, source: generated, max_steps: 30}\n")
    return str(path)


def play(config: str, *arguments: str, actions: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "retroformer", "play", config, *arguments]
    return subprocess.run(command, input=actions, capture_output=True, text=True, timeout=300, cwd=Path(config).parent)


def test_the_list_has_one_task_id_per_line_in_order(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["play", config, "--list"])
    listed, errors = capsys.readouterr()
    assert (listed.splitlines(), errors) == ([task.id for task in taskset(SECTION).tasks()], "")


def test_an_override_chooses_another_split_before_and_after_the_options(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["play", config, "environment.split=held_out", "--list"])
    listed = capsys.readouterr().out
    assert listed
    assert all("held_out" in line for line in listed.splitlines())
    main(["play", config, "--list", "environment.split=held_out"])
    assert capsys.readouterr().out == listed
    with pytest.raises(ConfigError, match="'held_out'"):
        main(["play", config, "--list", "held_out"])


def test_an_expert_wins_and_every_json_line_is_complete(config: str) -> None:
    source = alfworld.taskset(SECTION)
    task = source.tasks()[3]
    plan = source.walkthrough(task)
    done = play(config, "--task", task.id, "--jsonl", actions="\n".join(plan) + "\nlook\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [line["step"] for line in lines] == list(range(len(plan) + 1))  # Actions after the end are ignored.
    assert [line["action"] for line in lines] == [None, *plan]
    assert {tuple(line) for line in lines} == {
        ("step", "action", "observation", "reward", "terminated", "truncated", "return")
    }
    assert "Your task is to" in lines[0]["observation"]
    assert [line["reward"] for line in lines] == [0.0] * len(plan) + [1.0]
    assert [line["terminated"] for line in lines] == [False] * len(plan) + [True]
    assert (lines[-1]["return"], lines[-1]["truncated"]) == (1.0, False)


def test_actions_may_end_before_the_episode_does(config: str) -> None:
    task = taskset(SECTION).tasks()[0].id
    done = play(config, "--task", task, actions="look\nxyzzy\n")
    assert done.returncode == 0
    assert done.stdout.startswith("You are in the middle of a room.")
    assert done.stdout.endswith("Nothing happens.\n")


def test_an_episode_that_takes_too_long_is_reported_as_truncated(config: str) -> None:
    task = taskset(SECTION).tasks()[0].id
    done = play(config, "environment.max_steps=2", "--task", task, actions="look\n" * 5)
    assert done.stdout.endswith("\n[truncated, return 0]\n")
    last = play(config, "environment.max_steps=2", "--task", task, "--jsonl", actions="look\n" * 5).stdout.splitlines()
    assert len(last) == 1 + 2
    assert json.loads(last[-1])["truncated"] is True


def test_actions_are_sent_as_they_are_typed(config: str) -> None:
    task = taskset(SECTION).tasks()[0].id
    done = play(config, "--task", task, "--jsonl", actions="  Look \r\nthink: où?\n\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["action"] for line in lines] == [None, "  Look ", "think: où?", ""]
    assert lines[2]["observation"] == "OK."


def test_the_error_for_an_unknown_task_names_the_closest_one(config: str) -> None:
    task_id = taskset(SECTION).tasks()[0].id
    done = play(config, "--task", task_id[:-1])
    assert done.returncode == 1
    assert done.stdout == ""
    assert task_id[:-1] in done.stderr
    assert task_id in done.stderr.replace(repr(task_id[:-1]), "")
    assert done.stderr.count("\n") == 1


def test_a_task_or_the_list_must_be_requested(config: str) -> None:
    done = play(config)
    assert done.returncode == 2
    assert "--list" in done.stderr


def test_a_misspelt_config_is_one_sentence(config: str) -> None:
    with pytest.raises(MissingInput, match=r"^No experiment config at [^\n]*$"):
        main(["play", config + "x", "--list"])


def test_a_reader_that_closes_the_pipe_early_is_no_error(config: str) -> None:
    listing = subprocess.Popen(
        [sys.executable, "-m", "retroformer", "play", config, "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    assert listing.stdout.readline().startswith(b"generated/train/")
    listing.stdout.close()
    stderr = listing.stderr.read()
    listing.stderr.close()
    assert listing.wait(timeout=300) in (0, 1)
    assert stderr == b""
