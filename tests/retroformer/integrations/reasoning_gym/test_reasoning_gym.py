"""Tests of reasoning-gym as an environment, with the real package."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("reasoning_gym")
pytest.importorskip("retroformer.integrations.reasoning_gym")

from collect.rate import rate_reflections
from collect.warm import write_advice
from retroformer.environments.registry import extras, section_of, taskset
from retroformer.errors import ConfigError, EnvironmentFailure, UnknownTask
from retroformer.integrations.reasoning_gym.advice import METHODS, fitting_method, mixed_method
from retroformer.integrations.reasoning_gym.taskset import DatasetProcess
from retroformer.method.records import Outcome, Task
from retroformer.run.arm_names import WRITTEN
from retroformer.run.store import open_store
from tests.support.endpoint import Endpoint
from tests.support.reasoner import ADVICE, reason
from tests.support.runs import ROOT, facts_of, open_config

FAMILIES: dict[str, dict[str, Any]] = {"chain_sum": {"max_terms": 3}, "spell_backward": {}, "leg_counting": {}}


def source(**keys: Any) -> Any:
    return taskset(section_of({"name": "reasoning-gym", "families": FAMILIES, "size": 2} | keys))


def process_of(families: dict[str, dict[str, Any]], limit_seconds: float) -> Any:
    section: Any = section_of({"name": "reasoning-gym", "families": families, "size": 20})
    return closing(DatasetProcess(section, limit_seconds))


@pytest.fixture(scope="module")
def datasets() -> Iterator[DatasetProcess]:
    """Return datasets in one process for all tests, as importing the package takes seconds."""
    families: dict[str, dict[str, Any]] = {"chain_sum": {}, "prime_factorization": {}, "countdown": {}}
    with process_of(families, 20.0) as process:
        yield process


def test_families_take_turns_and_every_id_says_its_split() -> None:
    ids = [task.id for task in source(split="held_out").tasks()]
    assert ids == [f"held_out/{family}/{number}" for number in (0, 1) for family in FAMILIES]


def test_neither_splits_nor_seeds_share_the_seeds_of_their_tasks() -> None:
    def seed(number: int, split: str) -> int:
        section: Any = section_of(
            {"name": "reasoning-gym", "families": {"gcd": {}}, "seed": number, "split": split, "size": 100_000}
        )
        return int(section.dataset_seed)

    seeds = sorted(seed(number, split) for number in range(10) for split in ("train", "held_out"))
    assert min(after - before for before, after in pairwise(seeds)) >= 100_000
    assert seeds[-1] < 2**31


def test_the_packages_own_score_decides() -> None:
    from reasoning_gym import create_dataset

    tasks = source()
    section: Any = section_of({"name": "reasoning-gym", "families": FAMILIES, "size": 2})
    dataset = create_dataset("chain_sum", seed=section.dataset_seed, size=2, max_terms=3)
    expected = dataset[1]
    environment = tasks.environment()
    task = Task(id="train/chain_sum/1", environment="reasoning-gym", split="train")
    assert environment.reset(task).observation == expected["question"]
    right = environment.step(f"I add.\n<answer> {expected['answer']} </answer>")
    assert (right.reward, right.success, right.terminated, right.observation) == (1.0, True, True, "Right.")
    environment.reset(task)
    wrong = environment.step(f"{expected['answer']}, I think")
    assert 0 < wrong.reward == dataset.score_answer(f"{expected['answer']}, I think", expected) < 1
    assert (wrong.success, wrong.terminated) == (False, True)
    for odd in ("train/chain_sum/2", "held_out/chain_sum/0", "train/gcd/0", "chain_sum/0", "train/chain_sum/00"):
        with pytest.raises(UnknownTask, match="--list prints the ids"):
            environment.reset(task.model_copy(update={"id": odd}))


@pytest.mark.parametrize("answer", ["((((", "\ud83d", "null", "9" * 30_000, "<answer>", "x" * 100_000])
def test_an_answer_that_the_scorer_cannot_read_scores_nothing(datasets: DatasetProcess, answer: str) -> None:
    assert datasets.score("prime_factorization", 0, answer) == 0
    assert datasets.text("question", "prime_factorization", 0)


@pytest.mark.slow
def test_an_answer_that_the_scorer_never_finishes_scores_nothing_and_the_next_one_is_scored() -> None:
    with process_of({"countdown": {}}, 4.0) as process:
        question = process.text("question", "countdown", 3)
        assert process.score("countdown", 3, "9**9**9**9") == 0
        assert process.text("question", "countdown", 3) == question


def test_a_dataset_that_cannot_be_created_is_no_wrong_answer() -> None:
    refused = pytest.raises(EnvironmentFailure, match="could not generate task 3 of countdown")
    with process_of({"countdown": {"min_numbers": -1}}, 4.0) as process, refused:
        process.score("countdown", 3, "1 + 2")


def test_unknown_families_and_settings_are_refused_before_any_attempt() -> None:
    def refusal(families: dict[str, dict[str, Any]]) -> str:
        section = section_of({"name": "reasoning-gym", "families": families})
        with pytest.raises(ConfigError) as refused:
            extras(section).require_machine(section)
        return str(refused.value)

    assert refusal({"sums": {}}).startswith("reasoning-gym has no dataset 'sums': correct environment.families. It has")
    assert "'chain_sum' of reasoning-gym refuses its settings" in refusal({"chain_sum": {"colour": 1}})
    assert "'chain_sum' of reasoning-gym refuses its settings" in refusal({"chain_sum": {"min_terms": 0}})


def test_warm_start_advice_is_of_all_kinds_and_the_same_each_time() -> None:
    families = ("chain_sum", "gcd", "a_new_family")
    written = [mixed_method("train/chain_sum/1", seed, families) for seed in range(200)]
    assert written == [mixed_method("train/chain_sum/1", seed, families) for seed in range(200)]
    assert 100 < written.count(METHODS["chain_sum"]) < 140
    assert 20 < written.count(METHODS["gcd"]) < 60
    phrases = [text for text in written if text not in (METHODS["chain_sum"], METHODS["gcd"])]
    assert len(set(phrases)) == 5
    assert not set(phrases) & set(METHODS.values())
    unknown = {mixed_method("train/a_new_family/1", seed, ("a_new_family",)) for seed in range(50)}
    assert unknown == set(phrases)


def test_advice_by_rule_is_the_method_of_the_family() -> None:
    assert fitting_method("held_out/gcd/3") == METHODS["gcd"]
    assert fitting_method("held_out/a_new_family/3") not in METHODS.values()


@pytest.mark.slow
def test_tasks_are_collected_and_advice_on_their_failures_is_rated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Endpoint(reason) as server:
        config = open_config(
            ROOT / "configs/reasoning-gym.yaml",
            f"actor.endpoint.base_url={server.url}",
            f"reflector.endpoint.base_url={server.url}",
            "collect={tasks: 12, candidates: 1, written: 3}",
        )
        asyncio.run(rate_reflections(config))
        asyncio.run(write_advice(config))
    with closing(open_store(config.experiment)) as store:
        facts = facts_of(store, "collect")
        assert facts.invalid == 0
        first = {key.task_id: attempt for key, attempt in facts.trajectories.items() if key.trial == 0}
        assert len(first) == 12
        retried = {key.task_id: attempt for key, attempt in facts.trajectories.items() if key.trial == 1}
        assert retried
        assert {key for key, attempt in first.items() if attempt.outcome is Outcome.FAILURE} == set(retried)
        # The advice is about sums, so it helps with sums alone.
        for task_id, attempt in retried.items():
            assert (attempt.outcome is Outcome.SUCCESS) == ("/chain_sum/" in task_id), task_id
        assert {stored.reflection.text for stored in facts.reflections} == {ADVICE}
        written = facts_of(store, WRITTEN).reflections
        assert len(written) >= 3
        assert all(stored.key.task_id not in first for stored in written)
