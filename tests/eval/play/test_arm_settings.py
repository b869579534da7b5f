"""Settings that arms of every kind have, played on generated games: actors, seeds, first attempts, splits and plans."""

import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eval.play.evaluation import plan_of
from retroformer.coach.stories.reading import read_story, story_arms
from retroformer.config.file import Config
from retroformer.config.parts import chosen_tasks
from retroformer.environments.alfworld.released_games import GamePack
from retroformer.errors import ConfigError
from retroformer.method.records import Key, Outcome
from retroformer.run.arm_names import FIRST_TRIAL, own_first_trial
from retroformer.run.provenance import Provenance, ServedModel
from retroformer.run.store import open_store
from tests.support.arms import NOWHERE, POOLED, Arms, compare, config_with, solved, texts
from tests.support.data import DATA, needs_data
from tests.support.endpoint import Endpoint, prompt_of
from tests.support.runs import facts

PACKS = DATA / "alfworld"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def test_advice_before_the_first_attempt_has_a_first_attempt_of_its_own(tmp_path: Path) -> None:
    arms: Arms = {
        "told at once": {"kind": "oracle", "first": True},
        "nothing": {"kind": "none"},
        "told": {"kind": "oracle"},
    }
    config = config_with(tmp_path, NOWHERE, arms, "eval.tasks=8")
    report = compare(config)
    shared, own = facts(config, FIRST_TRIAL), facts(config, own_first_trial("eval/told at once"))
    advised = facts(config, "eval/told at once")
    assert len(own.trajectories) == len(shared.trajectories) == 8
    failed = sum(not solved(attempt) for attempt in shared.trajectories.values())
    assert failed > sum(not solved(attempt) for attempt in own.trajectories.values())
    assert Counter(stored.key.trial for stored in advised.reflections)[0] == 8
    after = {stored.key.task_id: stored.reflection.text for stored in facts(config, "eval/told").reflections}
    before = {stored.key.task_id: stored.reflection.text for stored in advised.reflections if not stored.key.trial}
    assert after.items() <= before.items(), "the oracle says the same before and after a failure"
    rates = dict(re.findall(r"^\| (told at once|nothing|told) \| (0\.\d+|1\.000) \[", report, re.MULTILINE))
    assert rates["nothing"] == rates["told"] < rates["told at once"]
    assert f"## Solved of the {failed} tasks that failed at trial 0" in report
    assert "no reflector sees, before the first attempt, too |" in report
    with closing(open_store(config.experiment)) as store:
        assert own_first_trial("eval/told at once") not in story_arms(store)
        story = read_story(store, "eval/told at once", next(iter(before)))
    assert story is not None
    assert story.turns[0].memory == (before[story.task.id],)
    assert len(story.turns[0].attempts) == 1
    assert compare(config) == report, "nothing is played twice"


def test_a_plan_is_stored_with_trial_0_and_cannot_be_changed_afterwards(tmp_path: Path) -> None:
    plan = "eval.comparisons=[{first: rule, second: nothing, mean: 0.1}]"
    arms: Arms = {"nothing": {"kind": "none"}, "rule": {"kind": "rule"}}
    config = config_with(tmp_path, NOWHERE, arms, plan)
    report = compare(config)
    with closing(open_store(config.experiment)) as store:
        sha256 = (store.conditions(FIRST_TRIAL) or {})["plan_sha256"]
    assert f"The plan has the sha256 `{sha256}`" in report
    assert compare(config) == report, "the same plan goes on"
    dearer = compare(config_with(tmp_path, NOWHERE, arms, plan, "eval.tokens=1000000", "eval.dollars=2"))
    assert f"The plan has the sha256 `{sha256}`" in dearer
    for change in ("eval.comparisons=[{first: rule, second: nothing, mean: 0.05}]", "eval.tasks=7", "loop.trials=3"):
        with pytest.raises(ConfigError, match="plan_sha256"):
            compare(config_with(tmp_path, NOWHERE, arms, plan, change))


def test_an_arm_of_a_planned_comparison_is_not_played_again_with_another_adapter(tmp_path: Path) -> None:
    model = ServedModel(base_sha256="b" * 64, adapter_sha256="a" * 64, chat_template_sha256="c" * 64)
    arms: Arms = {"nothing": {"kind": "none"}, "big": {"kind": "model", "model": "big"}}
    with Endpoint() as server:
        for number, plan in enumerate(((), ("eval.comparisons=[{first: big, second: nothing}]",))):
            config = config_with(tmp_path, server.url, arms, *plan, "eval.tasks=2", f"run=planned-{number}")
            for adapter in "ab":
                served = model.model_copy(update={"adapter_sha256": adapter * 64})
                server.provenance = Provenance(models={"big": served}, dtype="float32", versions={}).model_dump_json()
                if plan and adapter == "b":
                    with pytest.raises(ConfigError, match=r"reflector\.endpoint\.adapter_sha256"):
                        compare(config)
                else:
                    compare(config)


def test_a_plan_fixes_the_tasks(tmp_path: Path) -> None:
    arms: Arms = {"nothing": {"kind": "none"}, "rule": {"kind": "rule"}}
    plan = "eval.comparisons=[{first: rule, second: nothing, mean: 0.1}]"
    experiment = config_with(tmp_path, NOWHERE, arms, plan).experiment
    tasks = chosen_tasks(experiment, 3, ("held_out",))
    assert plan_of(experiment, tasks) == plan_of(experiment, list(tasks))
    assert plan_of(experiment, tasks) != plan_of(experiment, tasks[:2])
    assert plan_of(experiment, tasks) != plan_of(experiment, [tasks[1], tasks[0], tasks[2]])


SEEDS = ("tuned-1", "tuned-2", "tuned-3")


def test_training_seeds_are_played_separately_and_reported_as_one_arm(tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> str:
        return f"{body['model']} says nothing about the {len(prompt_of(body))} letters it read."

    with Endpoint(reply) as server:
        config = config_with(tmp_path, server.url, POOLED, "eval.tasks=12")
        report = compare(config)
    failed = {
        key.task_id for key, trajectory in facts(config, FIRST_TRIAL).trajectories.items() if not solved(trajectory)
    }
    for seed in SEEDS:
        assert texts(config, f"trained/{seed}").keys() == failed
        assert all(text.startswith(seed) for text in texts(config, f"trained/{seed}").values())
        assert f"| trained/{seed} |" in report
    assert facts(config, "eval/trained").counts == (0, 0)
    dealt = {text.partition(" ")[0] for text in texts(config, "placebo").values()}
    assert len(dealt) > 1
    assert dealt <= set(SEEDS)
    assert "written by the models `tuned-1`, `tuned-2`, `tuned-3`; mean over these training seeds" in report


@pytest.mark.slow
def test_a_single_model_keeps_the_name_of_its_arm_and_a_list_of_one_can_be_extended(tmp_path: Path) -> None:
    with Endpoint() as server:
        arms: Arms = {"frozen": {"kind": "model", "model": "big"}, "trained": {"kind": "model", "model": ["tuned-1"]}}
        config = config_with(tmp_path, server.url, arms)
        compare(config)
        played = facts(config, "eval/trained/tuned-1")
        assert facts(config, "eval/frozen").reflections
        assert played.reflections
        server.requests.clear()
        compare(config_with(tmp_path, server.url, arms, "eval.arms.trained.model=[tuned-1, tuned-2]"))
        probes = [request["model"] for request in server.requests if request["max_tokens"] == 24]
        requests_before = [request["model"] for request in server.requests if request["max_tokens"] != 24]
    assert probes == ["big", "tuned-1", "tuned-2"]
    assert set(requests_before) == {"tuned-2"}
    assert facts(config, "eval/trained/tuned-1") == played


@pytest.mark.slow
def test_a_placebo_of_another_number_of_seeds_is_played_anew(tmp_path: Path) -> None:
    with Endpoint() as server:
        compare(config_with(tmp_path, server.url, POOLED))
        config = config_with(tmp_path, server.url, POOLED, "eval.arms.trained.model=[tuned-1, tuned-2]")
        played = facts(config, "eval/placebo")
        compare(config)
    assert facts(config, "eval/placebo") == played
    with closing(open_store(config.experiment)) as store:
        assert len([arm for arm in store.arms() if arm.startswith("eval/placebo@")]) == 1


def test_the_prompt_of_an_arm_can_show_the_last_attempt_alone(tmp_path: Path) -> None:
    arms: Arms = {
        "all": {"kind": "model", "model": "big"},
        "last": {"kind": "model", "model": "big", "history": "last"},
    }
    with Endpoint() as server:
        config = config_with(tmp_path, server.url, arms, "eval.tasks=12", "loop.trials=3", "reflector.view=full")
        report = compare(config)
    second = {
        arm: [stored.reflection for stored in facts(config, f"eval/{arm}").reflections if stored.key.trial == 2]
        for arm in arms
    }
    assert all(second.values()), "both arms fail again somewhere"
    shows = {
        arm: ["Attempt 1, which failed:" in reflection.prompt[-1].content for reflection in second[arm]] for arm in arms
    }
    assert all(shows["all"])
    assert not any(shows["last"])
    assert "| last | written by the model `big`, from the last attempt |" in report
    with closing(open_store(config.experiment)) as store:
        bound = {arm: store.conditions(f"eval/{arm}") or {} for arm in arms}
    assert [bound[arm]["reflector"]["history"] for arm in arms] == ["all", "last"]


def acting(folder: Path, url: str, *overrides: str) -> Config:
    """Return the config of the same games with a language model at this URL as the actor."""
    arms = {"nothing": {"kind": "none"}, "sampled": {"kind": "none", "actor_temperature": 0.7}}
    own = (f"actor.endpoint.base_url={url}", "actor.kind=react", "loop.actions=4", "loop.trials=3")
    return config_with(folder, url, arms, *own, *overrides)


@pytest.mark.slow
def test_an_arm_can_be_played_by_the_same_actor_at_a_temperature_and_repeats(tmp_path: Path) -> None:
    with Endpoint() as server:
        first, again = acting(tmp_path, server.url), acting(tmp_path, server.url, "run=again", "loop.concurrency=2")
        report = compare(first)
        requests_before = {(request["temperature"], "seed" in request) for request in server.requests}
        compare(again)
    sampled = facts(first, "eval/sampled").trajectories
    assert requests_before == {(0.0, False), (0.7, True)}
    assert sampled == facts(again, "eval/sampled").trajectories
    assert "| sampled | none: retry without advice | at temperature 0.7 |" in report
    greedy = {key.task_id: trajectory for key, trajectory in facts(first, FIRST_TRIAL).trajectories.items()}
    nothing = facts(first, "eval/nothing").trajectories
    assert all(trajectory.steps == greedy[key.task_id].steps for key, trajectory in nothing.items())
    # The prompt is the same at each trial, so only the seed can change the answer.
    second = [key for key in sampled if key.trial == 2]
    assert second
    assert any(sampled[key].steps != sampled[trial_1(key)].steps for key in second)


@pytest.mark.slow
def test_another_model_acts_in_the_retries_of_an_arm_and_several_are_pooled(tmp_path: Path) -> None:
    models = (
        "{nothing: {kind: none}, other: {kind: none, actor_model: other}, seeds: {kind: none, actor_model: [a, b]}}"
    )
    with Endpoint() as server:
        config = acting(tmp_path, server.url, f"eval.arms={models}", "actor.endpoint.model=usual", "loop.trials=2")
        report = compare(config)
        asked = [request["model"] for request in server.requests]
    first = facts(config, FIRST_TRIAL).trajectories.values()
    failed = sum(attempt.outcome is Outcome.FAILURE for attempt in first)
    assert failed
    calls = {arm: facts(config, f"eval/{arm}").trajectories.values() for arm in ("other", "seeds/a", "seeds/b")}
    for arm, attempts in calls.items():
        assert len(attempts) == failed
        assert asked.count(arm.rpartition("/")[2]) == sum(attempt.usage.calls for attempt in attempts)
    assert set(asked) == {"usual", "other", "a", "b"}
    assert "| other | none: retry without advice | the model `other` |" in report
    assert "the models `a`, `b`; mean over these training seeds |" in report


def trial_1(key: Key) -> Key:
    return key.model_copy(update={"trial": 1})


@pytest.mark.slow
@needs_data("alfworld/valid_seen.tar.zst")
def test_several_splits_are_played_as_one(tmp_path: Path) -> None:
    chosen = {split: unpack(tmp_path / "games", split, 2) for split in ("valid_seen", "valid_unseen")}
    arms: Arms = {"nothing": {"kind": "none"}, "oracle": {"kind": "oracle"}}
    released = "environment={name: alfworld, data: games, split: train}"
    config = config_with(tmp_path, NOWHERE, arms, released, "eval.split=[valid_unseen, valid_seen]", "eval.tasks=3")
    report = compare(config)
    played = {key.task_id: trajectory.task.split for key, trajectory in facts(config, FIRST_TRIAL).trajectories.items()}
    unseen, seen = chosen["valid_unseen"], chosen["valid_seen"]
    assert played == dict.fromkeys(unseen, "valid_unseen") | {seen[0]: "valid_seen"}
    assert "3 of 3 held-out tasks of split `valid_unseen` (2) and `valid_seen` (1) were finished" in report


def unpack(folder: Path, split: str, count: int) -> list[str]:
    """Unpack the first games of a split; return their ids."""
    pack = GamePack(PACKS / f"{split}.tar.zst")
    chosen = sorted(task_id for task_id in pack.ids if task_id.startswith("look_at"))[:count]
    for task_id in chosen:
        game = folder / split / task_id / "game.tw-pddl"
        game.parent.mkdir(parents=True)
        game.write_bytes(pack.read(task_id))
    return chosen
