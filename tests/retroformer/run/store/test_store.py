"""Test that facts are written once, by any writer, and that what cannot be stored is reported in one sentence."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import event, exc

from retroformer.endpoint.secrets.redaction import keep_secret
from retroformer.errors import ConfigError, StoreError
from retroformer.method.records import Key, Outcome, Step, Usage
from retroformer.run.store import NewReflection, NewTrajectory, Store
from tests.support.characters import CAPITAL, PRICE, advice, attempt_at, task
from tests.support.facts import add_invalid, add_trajectory, causes

KEY = Key(arm="collect", task_id=CAPITAL.id)
RETRY = Key(arm="collect", task_id=CAPITAL.id, trial=1)


@pytest.fixture
def store(url: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Open a separate experiment in a store of either kind."""
    opened = Store(url, request.node.name)
    yield opened
    opened.close()


def test_a_stored_fact_is_read_back_unchanged(store: Store) -> None:
    trajectory, reflection = attempt_at(rewards=(0.1, 0.2)), advice("Say »Paris«.\nNot Lyon.")
    add_trajectory(store, KEY, trajectory)
    store.add_reflection(RETRY, 0, reflection)
    assert store.trajectory(KEY) == trajectory
    assert store.reflection(RETRY) == reflection
    assert dict(store.stream_trajectories("collect")) == {KEY: trajectory}
    assert [tuple(stored[:3]) for stored in store.stream_reflections("collect")] == [(RETRY, 0, reflection)]


def test_a_key_without_a_fact_returns_none(store: Store) -> None:
    assert store.trajectory(KEY) is None
    assert store.reflection(RETRY) is None
    assert store.arms() == []


def test_the_second_writer_of_a_key_changes_nothing_and_gets_the_stored_fact(store: Store) -> None:
    first, second = attempt_at(rewards=(0.0,)), attempt_at(rewards=(1.0,))
    assert add_trajectory(store, KEY, first) == first
    assert add_trajectory(store, KEY, second) == first
    assert dict(store.stream_trajectories("collect")) == {KEY: first}
    assert store.add_reflection(RETRY, 0, advice("one")).text == "one"
    assert store.add_reflection(RETRY, 1, advice("two")).text == "one"
    assert [(stored.previous_candidate, stored.reflection.text) for stored in store.stream_reflections("collect")] == [
        (0, "one")
    ]


def test_another_store_on_the_same_database_sees_the_facts_at_once(store: Store, url: str) -> None:
    other = Store(url, store.experiment)
    add_trajectory(store, KEY, attempt_at())
    assert other.trajectory(KEY) == attempt_at()
    other.close()


def test_experiments_in_one_database_are_separate(store: Store, url: str) -> None:
    other = Store(url, store.experiment + " again")
    add_trajectory(store, KEY, attempt_at())
    assert other.trajectory(KEY) is None
    assert other.arms() == []
    other.close()


def test_an_invalid_attempt_is_counted_and_leaves_its_key_free(store: Store) -> None:
    add_invalid(store, KEY, "The school is closed.", PRICE)
    add_invalid(store, KEY, "The school has burnt down.", PRICE)
    assert store.trajectory(KEY) is None
    assert causes(store, "collect") == ["The school is closed.", "The school has burnt down."]
    add_trajectory(store, KEY, attempt_at())
    assert store.trajectory(KEY) == attempt_at()


def test_usage_counts_rollouts_reflections_and_invalid_attempts(store: Store) -> None:
    add_trajectory(store, KEY, attempt_at())
    store.add_reflection(RETRY, 0, advice("Say Paris."))
    add_invalid(store, RETRY, "The school is closed.", PRICE)
    add_trajectory(store, Key(arm="other", task_id="x"), attempt_at(task("x")))
    assert store.usage("collect") == PRICE + PRICE + PRICE
    assert store.usage("nobody") == Usage()


def test_facts_come_in_the_order_of_their_keys(store: Store) -> None:
    keys = [Key(arm="collect", task_id=name, trial=trial) for name in ("a", "b") for trial in (0, 1, 2)]
    for key in reversed(keys):
        add_trajectory(store, key, attempt_at(task(key.task_id)))
    assert [key for key, _ in store.stream_trajectories("collect")] == keys


def test_the_same_conditions_may_be_declared_again(store: Store) -> None:
    store.declare("collect", {"seed": 0, "loop": {"memory": 3}})
    add_trajectory(store, KEY, attempt_at())
    store.declare("collect", {"loop": {"memory": 3}, "seed": 0})
    store.declare("eval/trial 0", {"seed": 1})
    add_trajectory(store, RETRY, attempt_at())
    assert store.conditions("collect") == {"loop": {"memory": 3}, "seed": 0}
    assert store.conditions("eval/trial 0") is None


def test_the_first_fact_binds_the_conditions_which_may_change_before_it(store: Store) -> None:
    store.declare("collect", {"seed": 0})
    add_invalid(store, KEY, "The school is closed.", PRICE)
    store.declare("collect", {"seed": 7})
    assert store.conditions("collect") is None
    add_trajectory(store, KEY, attempt_at())
    assert store.conditions("collect") == {"seed": 7}


def test_changed_conditions_are_refused_and_named(store: Store) -> None:
    store.declare("collect", {"seed": 0, "loop": {"memory": 3, "actions": 12}})
    add_trajectory(store, KEY, attempt_at())
    with pytest.raises(ConfigError) as refused:
        store.declare("collect", {"seed": 7, "loop": {"memory": 3, "actions": 30}})
    assert "loop.actions=12, not 30, seed=0, not 7" in str(refused.value)
    assert "run=NAME" in str(refused.value)


def test_the_second_of_two_processes_with_different_conditions_is_refused(store: Store, url: str) -> None:
    other = Store(url, store.experiment)
    store.declare("collect", {"seed": 0})
    other.declare("collect", {"seed": 7})
    add_trajectory(store, KEY, attempt_at())
    with pytest.raises(ConfigError, match="seed=0, not 7"):
        other.add_reflection(RETRY, 0, advice("Say Paris."))
    assert list(store.stream_reflections("collect")) == []
    other.close()


def test_many_stages_may_open_bind_and_write_a_new_store_at_once(url: str) -> None:
    def stage(number: int) -> str:
        opened = Store(url, "a race")
        opened.declare("collect", {"seed": 0})
        kept = add_trajectory(opened, KEY, attempt_at(rewards=(float(number),)))
        opened.close()
        return f"{kept.episode_return:g}"

    with ThreadPoolExecutor(8) as stages:
        assert len(set(stages.map(stage, range(8)))) == 1


def test_a_store_that_cannot_be_reached_is_one_sentence() -> None:
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    with pytest.raises(StoreError, match="check that it can be reached and written") as refused:
        Store("postgresql+psycopg://nobody@127.0.0.1:1/postgres", "riddles")
    assert "127.0.0.1:1" in str(refused.value)


def test_an_address_with_an_unknown_driver_is_one_sentence() -> None:
    with pytest.raises(StoreError, match=r"sqlite\+nothing:///x.db cannot be used"):
        Store("sqlite+nothing:///x.db", "riddles")


def test_a_file_that_is_not_a_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "experience.db").write_text("Dear diary, " * 200)
    with pytest.raises(StoreError, match="file is not a database"):
        Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")


@pytest.mark.skipif(not os.getuid(), reason="root may write anywhere")
def test_a_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="check that it can be reached and written"):
        Store(f"sqlite:///{tmp_path / 'run' / 'experience.db'}", "riddles")


_FILL = """
import sys
from retroformer.errors import run_command
from retroformer.method.records import Key, Outcome
from retroformer.run.store import NewReflection, NewTrajectory, Store
from tests.support.characters import attempt_at, task
def fill(arguments):
    store = Store(f"sqlite:///{arguments[0]}/experience.db", "riddles")
    for number in range(10_000):
        key = Key(arm="collect", task_id=str(number))
        store.add([NewTrajectory(key, attempt_at(task("x" * 4000)))])
        print(number, flush=True)
run_command(fill)
"""


def test_a_full_disk_is_one_sentence_and_keeps_stored_facts(tmp_path: Path) -> None:
    """Fill a real disk of 512 KiB, mounted for the process alone."""
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*mount, f"mount -t tmpfs none {tmp_path}"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    script = (
        f"mount -t tmpfs -o size=512k none {tmp_path} && {sys.executable} -c '{_FILL}' {tmp_path}; "
        f'status=$?; rm -f {tmp_path}/*-shm; {sys.executable} -c "'
        f"import sqlite3; print('kept', sqlite3.connect('file:{tmp_path}/experience.db?mode=ro', uri=True)"
        f".execute('select count(*) from trajectories').fetchone()[0])\"; exit $status"
    )
    done = subprocess.run([*mount, script], capture_output=True, text=True, timeout=300)
    *lines, kept = done.stdout.split("\n")[:-1]
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "database or disk is full" in done.stderr
    assert "free some space and run again" in done.stderr
    assert int(lines[-1]) > 10
    assert kept == f"kept {len(lines)}"


def test_the_outcome_of_an_attempt_can_be_queried_in_sql(tmp_path: Path) -> None:
    import sqlite3

    store = Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")
    add_trajectory(store, KEY, attempt_at(rewards=(1.0,), outcome=Outcome.SUCCESS))
    store.close()
    connection = sqlite3.connect(tmp_path / "experience.db")
    rows = connection.execute(
        "select arm, task_id, trial, outcome, ending, episode_return from trajectories"
    ).fetchall()
    connection.close()
    assert rows == [("collect", CAPITAL.id, 0, "success", "solved", 1.0)]


@pytest.mark.parametrize("text", ["before\0after", "half a \ud83d character", "\\u0000 as text"])
def test_characters_that_a_database_cannot_hold_are_replaced_in_one_place(store: Store, text: str) -> None:
    kept = store.add_reflection(RETRY, 0, advice(text))
    assert kept.text == text.replace("\0", "\ufffd").replace("\ud83d", "\ufffd")
    assert store.reflection(RETRY) == kept
    played = attempt_at(rewards=(0.0,))
    (step,) = played.steps
    spoken = played.model_copy(update={"steps": (step.model_copy(update={"observation": text}),)})
    kept_attempt = add_trajectory(store, KEY, spoken)
    assert kept_attempt.steps[0].observation == kept.text
    assert store.trajectory(KEY) == kept_attempt
    add_invalid(store, KEY, text, PRICE)
    assert store.last_cause("collect") == kept.text


def test_a_call_that_lost_a_race_is_charged(store: Store) -> None:
    add_trajectory(store, KEY, attempt_at())
    add_trajectory(store, KEY, attempt_at())
    assert store.usage("collect") == PRICE + PRICE
    assert store.arm_counts()["collect"].attempts == 1


def test_imported_facts_are_charged_once_even_if_imported_repeatedly(store: Store) -> None:
    facts = [NewTrajectory(KEY, attempt_at()), NewReflection(RETRY, 0, advice("Say Paris."))]
    assert [store.add_all(lambda: facts) for _ in range(2)] == [2, 0]
    assert store.usage("collect") == PRICE + PRICE


def test_the_first_of_several_facts_with_one_key_in_one_transaction_counts(store: Store) -> None:
    first, second = attempt_at(rewards=(0.0,)), attempt_at(rewards=(1.0,))
    assert store.add([NewTrajectory(KEY, first), NewTrajectory(KEY, second)]) == [first, first]
    assert store.usage("collect") == PRICE + PRICE


def test_a_transaction_with_a_refused_fact_stores_nothing(store: Store, url: str) -> None:
    other = Store(url, store.experiment)
    other.declare("bound", {"seed": 1})
    add_trajectory(other, KEY.model_copy(update={"arm": "bound"}), attempt_at())
    other.close()
    facts = [NewTrajectory(KEY, attempt_at()), NewTrajectory(KEY.model_copy(update={"arm": "bound"}), attempt_at())]
    with pytest.raises(ConfigError):
        store.add(facts)
    assert store.arms() == ["bound"]
    assert store.usage("collect") == Usage()


def test_facts_come_in_byte_order_in_any_locale_of_the_server(store: Store) -> None:
    names = ["Zebra", "apple", "Öl", "äpfel", "B-2", "B 10", "b"]
    for name in names:
        add_trajectory(store, Key(arm="collect", task_id=name), attempt_at(task(name)))
    assert [key.task_id for key, _ in store.stream_trajectories("collect")] == sorted(names)
    assert [row.task_id for row in store.attempt_rows("collect", sorted(names))] == sorted(names)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_nan_reward_cannot_be_stored(reward: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        Step(action="look", observation="", reward=reward)


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_a_transaction_that_is_repeated_binds_its_arm_and_stores_its_facts_once(store: Store, moment: str) -> None:
    """Make the first commit fail, or lose its answer with the connection."""
    failures = ["database is locked"]

    def fail(connection: sa.Connection) -> None:
        if failures:
            if moment == "after the commit":
                connection.connection.commit()
            raise exc.OperationalError("commit", {}, sqlite3.OperationalError(failures.pop()))

    store.declare("collect", {"seed": 1})
    event.listen(store._database._engine, "commit", fail)
    kept = add_trajectory(store, KEY, attempt_at())
    assert not failures
    assert kept == attempt_at()
    assert store.arm_counts()["collect"].attempts == 1
    assert store.conditions("collect") == {"seed": 1}
    assert store.arms() == ["collect"]


@pytest.mark.parametrize("lost", ["experience.db", "experience.db-wal", "experience.db-shm"])
def test_a_file_that_is_removed_while_it_is_in_use_is_noticed_before_the_next_write(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "experience.db"
    store = Store(f"sqlite:///{path}", "riddles")
    add_trajectory(store, KEY, attempt_at())
    (tmp_path / lost).unlink()
    with pytest.raises(StoreError, match="was removed or replaced while it was in use"):
        add_trajectory(store, KEY.model_copy(update={"trial": 1}), attempt_at())
    store.close()


def test_an_api_key_that_a_model_repeats_is_not_stored(store: Store) -> None:
    keep_secret("sk-a-key-that-is-long-enough")
    kept = store.add_reflection(RETRY, 0, advice("My key is sk-a-key-that-is-long-enough, use it."))
    assert kept.text == "My key is ***, use it."
    assert store.reflection(RETRY) == kept
    assert [stored.reflection.text for stored in store.stream_reflections("collect")] == [kept.text]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"task_id": "half \ud83d"}, "which no database stores"),
        ({"task_id": "with\0NUL"}, "which no database stores"),
        ({"task_id": "é" * 257}, "it has 514 bytes"),
        ({"arm": "a" * 501}, "it has 501 bytes"),
        ({"trial": 2_000_000_000}, "less than or equal to 9999"),
    ],
)
def test_what_no_database_or_reader_can_hold_is_no_key(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        Key.model_validate({"arm": "collect", "task_id": "a"} | fields)


def test_sums_of_usage_are_no_facts_so_they_have_no_bound(store: Store) -> None:
    most = Usage(calls=1, prompt_tokens=10**10, dollars=1e12)
    attempt = attempt_at().model_copy(update={"usage": most + most})
    for number in range(3):
        add_trajectory(store, KEY.model_copy(update={"repeat": number}), attempt)
    assert store.usage("collect").prompt_tokens == 3 * 10**10, "a fact has at most 10^10"
    assert store.usage_of_arms(lambda arm: True).dollars == 3e12
    store.check()
    assert len(list(store.stream_trajectories("collect"))) == 3
    with pytest.raises(ValidationError, match="less than or equal to 10000000000"):
        Usage(prompt_tokens=2**53)


def test_an_id_that_ends_as_that_of_a_story_is_kept_whole(store: Store) -> None:
    name = "owner/repo@0123456789ab"
    task = attempt_at().task.model_copy(update={"id": name})
    add_trajectory(store, KEY.model_copy(update={"task_id": name}), attempt_at().model_copy(update={"task": task}))
    assert store.tasks("collect") == {name: name}


def test_a_story_of_the_longest_id_can_be_marked(store: Store) -> None:
    key = KEY.model_copy(update={"task_id": "x" * 500 + "@0123456789ab"})
    add_trajectory(store, Key.model_validate(key.model_dump()), attempt_at())
    store.marks.add(key.arm, key.task_id, "right")
    assert store.marks.tasks(key.arm, ["right"]) == {key.task_id}


def test_attempts_of_one_second_have_times_of_their_own(store: Store) -> None:
    for trial in range(5):
        add_trajectory(store, KEY.model_copy(update={"trial": trial}), attempt_at())
    times = list(store.stored_times("collect", KEY.task_id).values())
    assert len(set(times)) == 5
    assert times == sorted(times), "live outcomes are compared in this order"


def test_a_cause_is_stored_up_to_4000_characters(store: Store) -> None:
    add_invalid(store, KEY, "x" * 2_000_000, PRICE)
    assert [len(cause) for cause in causes(store, "collect")] == [4000]
