"""Tests of OpenEnv environments with a real server of the package, in a process of its own."""

import asyncio
import re
from contextlib import closing
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from retroformer.config.conditions import check_training_facts, conditions
from retroformer.config.experiment import Experiment
from retroformer.environments.registry import section_of, taskset
from retroformer.errors import ConfigError, EnvironmentFailure, ServiceError, UnknownTask
from retroformer.method.protocols import Environment
from retroformer.method.records import Ending, Key, Outcome, Task, Trajectory
from retroformer.run.store import Store
from tests.support.codes import facts
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.facts import add_trajectory
from tests.support.runs import open_config

pytest.importorskip("openenv.core.env_server", reason="needs openenv-core")
pytest.importorskip("retroformer.integrations.openenv", reason="the integration is deleted")


def environment(url: str, **keys: object) -> Environment:
    section = section_of({"name": "openenv", "url": url, "observation": "hint", "size": 20, **keys})
    return taskset(section).environment()


def task(number: int, split: str = "train") -> Task:
    return Task(id=f"{split}/{number}", environment="openenv", split=split)


def test_an_episode_ends_with_the_reward_of_the_server(url: str) -> None:
    guessing = environment(url)
    assert guessing.reset(task(7)).observation == "Guess a number from 0 to 9."
    assert guessing.step("5").observation == "The number is higher."
    last = guessing.step("7")
    assert last.observation == "Right.\nThe episode is over; its return is 1 of 1."
    assert (last.reward, last.terminated, last.success) == (1.0, True, True)
    guessing.reset(task(7))
    guesses = [guessing.step(str(number)) for number in (1, 2, 3)]
    assert [(guess.reward, guess.terminated) for guess in guesses] == [(0.0, False), (0.0, False), (0.0, True)]


def test_rewards_are_mapped_to_the_scale_from_0_to_1(url: str) -> None:
    guessing = environment(url, lowest=-1.0, highest=1.0)
    guessing.reset(task(7))
    # The sum of the rewards is -.5, a quarter of the way from -1 to 1.
    assert [guessing.step(str(number)).reward for number in (1, 2, 3)] == [0.0, 0.0, 0.25]


def test_two_sessions_do_not_share_an_episode(url: str) -> None:
    one, other = environment(url), environment(url)
    one.reset(task(3))
    other.reset(task(4))
    assert one.step("3").success
    assert other.step("4").success


@pytest.mark.parametrize("action", ["seven", '{"number": 7}', '{"guess": "x"}', "[7]"])
def test_an_action_that_the_server_refuses_is_the_failure_of_the_agent(action: str, url: str) -> None:
    guessing = environment(url)
    guessing.reset(task(7))
    refused = guessing.step(action)
    assert refused.observation.startswith("The action was refused: Invalid message guess: ") or "number" in action
    assert not refused.over
    assert guessing.step('{"guess": 7}').success


def test_an_episode_that_does_not_end_is_truncated_with_its_return(url: str) -> None:
    guessing = environment(url, max_steps=2, lowest=-1.0)
    guessing.reset(task(7))
    assert not guessing.step("1").over
    last = guessing.step("1")
    assert (last.truncated, last.terminated, last.reward) == (True, False, 0.5)


def test_what_the_server_cannot_do_is_invalid(url: str) -> None:
    guessing = environment(url, timeout_seconds=1.0)
    with pytest.raises(EnvironmentFailure, match="EXECUTION_ERROR: out of numbers"):
        guessing.reset(task(13))
    guessing.reset(task(1))
    with pytest.raises(EnvironmentFailure, match=r"no answer within 1 s\."):
        guessing.step("99")
    with pytest.raises(EnvironmentFailure, match="has no field 'board', only hint"):
        environment(url, observation="board").reset(task(1))
    with pytest.raises(UnknownTask):
        guessing.reset(task(20))


def test_a_server_that_is_not_there_is_refused_before_anything_is_played() -> None:
    with pytest.raises(EnvironmentFailure, match=r"The OpenEnv server http://127\.0\.0\.1:9 cannot be reached"):
        environment("http://127.0.0.1:9").reset(task(1))
    from retroformer.environments.registry import extras

    section = section_of({"name": "openenv", "url": "http://127.0.0.1:9"})
    with pytest.raises(ServiceError, match="cannot be reached"):
        extras(section).require_machine(section)
    with pytest.raises(ConfigError, match=r"name its address in environment\.url"):
        taskset(section_of({"name": "openenv"})).environment().reset(task(1))


def test_tasks_come_from_a_file_or_are_seeds(url: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "easy", "reset": {"seed": 5}}\n{"id": "late", "split": "held_out", "reset": {"seed": 6}}\n')
    guessing = environment(url, data=str(file), split="held_out")
    guessing.reset(Task(id="late", environment="openenv", split="held_out"))
    assert guessing.step("6").success
    seeds = [taskset(section_of({"name": "openenv", "url": url, "size": 3, "split": s})) for s in ("train", "held_out")]
    assert [[one.id for one in split.tasks()] for split in seeds] == [
        ["train/0", "train/1", "train/2"],
        ["held_out/0", "held_out/1", "held_out/2"],
    ]
    with pytest.raises(ConfigError, match="choose train or held_out"):
        environment(url, split="test").reset(task(1))


def test_advice_on_a_failure_is_rated_by_the_retry(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(body: Body) -> str:
        shown = prompt_of(body)
        if "Advice for the next attempt" in shown:
            return "Guess 3."
        return "3" if "Guess 3." in shown else "0"

    monkeypatch.chdir(tmp_path)
    with Endpoint(play) as model:
        (tmp_path / "guess.yaml").write_text(
            f"run: agent\nenvironment: {{name: openenv, url: '{url}', observation: hint, size: 5}}\n"
            f"actor: {{endpoint: {{base_url: '{model.url}', model: m}}}}\n"
            f"reflector: {{endpoint: {{base_url: '{model.url}', model: m}}}}\n"
            "collect: {tasks: 5, candidates: 1}\nloop: {trials: 2}\n"
        )
        asyncio.run(rate_reflections(open_config(tmp_path / "guess.yaml")))
    attempts, ratings, causes = facts(f"sqlite:///{tmp_path}/runs/agent/experience.db")
    # Only the number 0 is guessed at once, and only 3 by the advice.
    assert sorted(ratings) == [0.0, 0.0, 0.0, 1.0]
    assert len(attempts) == 9
    assert causes == []


def test_a_reset_that_ends_the_episode_is_invalid(url: str) -> None:
    with pytest.raises(EnvironmentFailure, match=r"ended the episode at once \(done: true\), so there is nothing to"):
        environment(url).reset(task(14))


def test_proxy_variables_do_not_matter(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    guessing = environment(url)
    guessing.reset(task(7))
    assert guessing.step("7").success


def config(folder: Path, url: str) -> Experiment:
    file = folder / "guess.yaml"
    file.write_text(
        f"run: agent\nenvironment: {{name: openenv, url: '{url}'}}\nactor: {{endpoint: {{model: m}}}}\n"
        "reflector: {endpoint: {model: m}}\n"
    )
    return open_config(file).experiment


def test_conditions_name_the_server_its_version_and_its_schemas(url: str, tmp_path: Path) -> None:
    def server(address: str) -> str:
        version: str = conditions(config(tmp_path, address))["versions"]["server"]
        return version

    saying = server(f"{url}/saying")
    assert re.fullmatch(r"repeating 1\.0\.0 [0-9a-f]{16}", saying)
    assert server(f"{url}/newer") == saying.replace("1.0.0", "2.0.0")
    placing = server(f"{url}/placing")
    assert placing != saying
    assert placing.startswith("repeating 1.0.0 ")
    with pytest.raises(ServiceError, match="cannot be reached"):
        server("http://127.0.0.1:9")


def test_training_on_stored_facts_needs_no_server(url: str, tmp_path: Path) -> None:
    made = conditions(config(tmp_path, url))
    made["environment"]["url"] = "http://127.0.0.1:9"
    with closing(Store(f"sqlite:///{tmp_path}/experience.db", "agent")) as store:
        store.declare("collect", made)
        attempt = Trajectory(task=task(1), opening="Guess.", outcome=Outcome.FAILURE, ending=Ending.TERMINATED)
        add_trajectory(store, Key(arm="collect", task_id="train/1"), attempt)
        check_training_facts(store, config(tmp_path, "http://127.0.0.1:9"), ["collect"])


def test_a_server_without_room_says_so(url: str) -> None:
    first, second = environment(f"{url}/full"), environment(f"{url}/full")
    first.reset(task(1))
    with pytest.raises(EnvironmentFailure, match="CAPACITY_REACHED: Server at capacity: 1/1"):
        second.reset(task(1))
