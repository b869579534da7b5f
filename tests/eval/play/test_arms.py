"""Arms played on generated games by real components: what each arm reads, and which arms are refused."""

import asyncio
import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from collect.rate import rate_reflections
from eval.play.arms import plan_of
from eval.play.compare import compare_arms
from retroformer.agents.phrases import PHRASES
from retroformer.arm_names import FIRST_TRIAL, own_first_trial
from retroformer.environments.alfworld.advice.failure import view_of
from retroformer.environments.alfworld.advice.places import PlaceTable
from retroformer.environments.alfworld.advice.reader import read_advice
from retroformer.environments.alfworld.advice.rule_reflector import advice_on_places
from retroformer.environments.alfworld.game.packs import GamePack
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, MissingInput
from retroformer.experiment.parts import LoadedConfig, chosen_tasks
from retroformer.experiment.storage import open_store
from retroformer.records import Key, Outcome, Trajectory
from retroformer.stories.reading import read_story, story_arms
from tests.support.data import DATA, needs_data
from tests.support.endpoint import Endpoint, prompt_of
from tests.support.runs import HOUSEHOLD, facts, open_config, write_config

PACKS = DATA / "alfworld"
NOWHERE = "http://127.0.0.1:1/v1"
Arms = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def config_with(folder: Path, url: str, arms: Arms, *overrides: str) -> LoadedConfig:
    """Return the household config with these arms and two trials."""
    config = HOUSEHOLD | {"eval": HOUSEHOLD["eval"] | {"arms": arms, "reference": next(iter(arms))}}
    return open_config(write_config(folder, url, config), "loop.trials=2", *overrides)


def compare(config: LoadedConfig) -> str:
    """Run the evaluation; return the report in Markdown."""
    asyncio.run(compare_arms(config))
    return (config.experiment.folder / "eval" / "report.md").read_text()


def texts(config: LoadedConfig, arm: str) -> dict[str, str]:
    """Return what an arm wrote after trial 0, by task."""
    return {stored.key.task_id: stored.reflection.text for stored in facts(config, f"eval/{arm}").reflections}


WRITTEN: Arms = {
    "nothing": {"kind": "none"},
    "phrase": {"kind": "phrase"},
    "rule": {"kind": "rule"},
    "unseen": {"kind": "rule", "wording": "unseen"},
    "oracle": {"kind": "oracle"},
    "oracle, unseen": {"kind": "oracle", "wording": "unseen"},
    "placebo": {"kind": "placebo", "of": "oracle"},
}


@pytest.mark.slow
def test_arms_without_a_model_describe_themselves(tmp_path: Path) -> None:
    config = config_with(tmp_path, NOWHERE, WRITTEN, "eval.tasks=12")
    report = compare(config)
    failed = {
        key.task_id for key, trajectory in facts(config, FIRST_TRIAL).trajectories.items() if not solved(trajectory)
    }
    output = {arm: texts(config, arm) for arm in WRITTEN}
    assert len(failed) >= 4
    assert all(texts.keys() == failed for texts in output.values())
    assert set(output["nothing"].values()) == {""}
    assert set(output["phrase"].values()) <= set(PHRASES)
    assert len(set(output["phrase"].values())) > 1
    assert all(output["placebo"][task] in set(output["oracle"].values()) - {output["oracle"][task]} for task in failed)
    assert not set(output["rule"].values()) & set(output["unseen"].values())
    assert not set(output["oracle"].values()) & set(output["oracle, unseen"].values())
    won = {arm: sum(map(solved, facts(config, f"eval/{arm}").trajectories.values())) for arm in WRITTEN}
    assert won["nothing"] == won["phrase"] == 0
    # The rule actor understands the plain words of the oracle; the effect of other advice is not specified.
    assert won["oracle"] >= won["rule"] > 0
    assert won["oracle"] > won["placebo"]
    assert f"## Solved of the {len(failed)} tasks that failed at trial 0" in report
    assert re.search(r"- \*\*oracle\*\* \(a yardstick\) solves .* points more than \*nothing\*", report)
    assert "The actor is a program (kind `rule`)" in report
    assert "at most 9 actions (`loop.actions`; the environment itself ends it after 20)" in report


@pytest.mark.parametrize(
    "arms", [{"nothing": {"kind": "none"}}, pytest.param(WRITTEN, marks=pytest.mark.slow)], ids=["retry", "written"]
)
def test_arms_without_a_model_start_no_server_and_probe_none(tmp_path: Path, arms: Arms) -> None:
    """The reflector has no address, as in configs/alfworld.yaml; a server could not start on this base."""
    evaluation = HOUSEHOLD["eval"] | {"arms": arms, "reference": "nothing"}
    config = HOUSEHOLD | {"reflector": {"view": "compact"}, "eval": evaluation}
    path = tmp_path / "local.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    report = compare(open_config(path, "loop.trials=2", "train.base_model=/nowhere"))
    assert "## Served models" not in report
    assert all(f"| {arm} |" in report for arm in arms)


def solved(attempt: Trajectory) -> bool:
    return attempt.outcome is Outcome.SUCCESS


@pytest.mark.slow
def test_advice_of_training_tasks_can_be_retrieved_with_its_source(tmp_path: Path) -> None:
    arms: Arms = {"nothing": {"kind": "none"}, "remembered": {"kind": "retrieved"}}
    with Endpoint() as server:
        config = config_with(tmp_path, server.url, arms, "collect.tasks=8", "eval.tasks=12")
        asyncio.run(rate_reflections(config))
        requests_before = len(server.requests)
        report = compare(config)
        assert len(server.requests) == requests_before, "nothing is written anew"
    written = {stored.reflection.text for stored in facts(config, "collect").reflections}
    given = facts(config, "eval/remembered").reflections
    assert given
    assert {stored.reflection.text for stored in given} <= written
    assert all(stored.reflection.author.endpoint == "memory" for stored in given)
    assert all(stored.reflection.author.model.startswith("toy/collect/") for stored in given)
    assert "reflections collected on other tasks, retrieved by similarity and rating" in report
    with closing(open_store(config.experiment)) as store:
        bound = store.conditions("eval/remembered")
    assert bound is not None
    assert (bound["retrieval"]["exploration"], bound["retrieval"]["days"]) == (0.3, None)


@pytest.mark.slow
def test_the_places_of_training_attempts_can_be_counted_for_an_arm_without_a_model(tmp_path: Path) -> None:
    arms: Arms = {
        "nothing": {"kind": "none"},
        "rule": {"kind": "history_rule"},
        "here": {"kind": "table"},
        "elsewhere": {"kind": "table", "runs": ["other"]},
    }
    overrides = ("collect.tasks=30", "eval.tasks=12", "loop.trials=3")
    with Endpoint() as server:
        asyncio.run(rate_reflections(config_with(tmp_path, server.url, arms, *overrides, "run=other")))
        config = config_with(tmp_path, server.url, arms, *overrides, "collect.tasks=1")
        asyncio.run(rate_reflections(config))
        report = compare(config)
    counted = PlaceTable(facts(open_config(config.path, "run=other"), "collect").trajectories.values())
    first = facts(config, FIRST_TRIAL).trajectories
    given = [stored for stored in facts(config, "eval/elsewhere").reflections if stored.key.trial == 1]
    assert given
    for stored in given:
        view = view_of(first[stored.key.model_copy(update={"arm": "eval/trial 0", "trial": 0})])
        assert stored.reflection.text == advice_on_places(view, counted.ranked(view)[:8])
    assert texts(config, "elsewhere") != texts(config, "here")
    assert "the places at which training attempts most often found such things" in report
    with closing(open_store(config.experiment)) as store:
        hashes = [(store.conditions(f"eval/{arm}") or {})["experience_sha256"] for arm in ("here", "elsewhere")]
    assert hashes[0] != hashes[1]
    elsewhere: Arms = {"nothing": {"kind": "none"}, "elsewhere": arms["elsewhere"]}
    with pytest.raises(ConfigError, match="12 of 12 evaluation tasks were used for training"):
        compare(config_with(tmp_path, NOWHERE, elsewhere, "run=third", "eval.split=train", "eval.tasks=12"))


@pytest.mark.parametrize("among", ["same_kind", pytest.param("other_kinds", marks=pytest.mark.slow)])
def test_a_placebo_can_be_limited_to_tasks_about_the_same_kind_of_thing_or_to_others(
    tmp_path: Path, among: str
) -> None:
    arms: Arms = {"oracle": {"kind": "oracle"}, "placebo": {"kind": "placebo", "of": "oracle", "among": among}}
    config = config_with(tmp_path, NOWHERE, arms, "eval.tasks=40")
    report = compare(config)
    told = {"same_kind": "about the same kind of thing", "other_kinds": "about other kinds of things"}[among]
    assert f"wrote about other tasks {told}" in report
    kind_of = extras(config.experiment.environment).kind_of
    assert kind_of is not None
    kinds = {key.task_id: kind_of(attempt) for key, attempt in facts(config, FIRST_TRIAL).trajectories.items()}
    written, given = texts(config, "oracle"), texts(config, "placebo")
    often = {kind for kind, count in Counter(kinds[task] for task in written).items() if count > 1}
    assert len(often) > 2
    for task, text in given.items():
        sources = {kinds[other] for other, advice in written.items() if advice == text and other != task}
        assert sources
        if kinds[task] in often:
            assert (kinds[task] in sources) is (among == "same_kind")
    alone = sum(kinds[task] not in often for task in given) if among == "same_kind" else 0
    assert f"(in {alone} of {len(given)} retries there was none, so it gave advice about any other task)" in report
    with pytest.raises(ConfigError, match=r"eval/placebo.* advice_of_tasks.count=40, not 41"):
        compare(config_with(tmp_path, NOWHERE, arms, "eval.tasks=41"))


@pytest.mark.slow
def test_an_arm_may_name_fewer_places(tmp_path: Path) -> None:
    arms: Arms = {
        "rule": {"kind": "rule"},
        "two": {"kind": "rule", "places": 2},
        "one": {"kind": "history_rule", "places": 1},
    }
    config = config_with(tmp_path, NOWHERE, arms)
    compare(config)
    first = facts(config, FIRST_TRIAL).trajectories
    views = {key.task_id: view_of(attempt) for key, attempt in first.items() if attempt.failed}
    named = {
        arm: [
            len(read_advice([text], views[task].order, views[task].goal).first)
            for task, text in texts(config, arm).items()
        ]
        for arm in arms
    }
    assert {arm: max(counts) for arm, counts in named.items()} == {"rule": 3, "two": 2, "one": 1}


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


def test_a_plan_fixes_the_tasks(tmp_path: Path) -> None:
    arms: Arms = {"nothing": {"kind": "none"}, "rule": {"kind": "rule"}}
    plan = "eval.comparisons=[{first: rule, second: nothing, mean: 0.1}]"
    experiment = config_with(tmp_path, NOWHERE, arms, plan).experiment
    tasks = chosen_tasks(experiment, 3, ("held_out",))
    assert plan_of(experiment, tasks) == plan_of(experiment, list(tasks))
    assert plan_of(experiment, tasks) != plan_of(experiment, tasks[:2])
    assert plan_of(experiment, tasks) != plan_of(experiment, [tasks[1], tasks[0], tasks[2]])


def test_a_table_of_a_run_without_attempts_is_refused(tmp_path: Path) -> None:
    config = config_with(tmp_path, NOWHERE, {"table": {"kind": "table", "runs": ["nowhere"]}})
    with pytest.raises(MissingInput, match="No collected attempts of the run 'nowhere'"):
        compare(config)
    assert not Path("runs/nowhere").exists()


def test_without_experience_retrieval_is_refused(tmp_path: Path) -> None:
    config = config_with(tmp_path, NOWHERE, {"nothing": {"kind": "none"}, "remembered": {"kind": "retrieved"}})
    with pytest.raises(MissingInput, match="retroformer collect"):
        compare(config)


def test_a_document_is_given_after_every_failure(tmp_path: Path) -> None:
    arms: Arms = {"nothing": {"kind": "none"}, "guide": {"kind": "document", "file": "guide.md"}}
    config = config_with(tmp_path, NOWHERE, arms, "eval.tasks=8")
    with pytest.raises(MissingInput, match=r"'guide.md' has no text: name a document with eval.arms.NAME.file"):
        compare(config)
    Path("guide.md").write_text("Look in every drawer.\n")
    report = compare(config)
    assert set(texts(config, "guide").values()) == {"Look in every drawer."}
    assert "the text of `guide.md`, the same after every failure" in report
    # The conditions of its facts hold the text, so another text is another arm.
    Path("guide.md").write_text("Look in every cabinet.\n")
    with pytest.raises(ConfigError, match="document_sha256"):
        compare(config)


POOLED: Arms = {
    "nothing": {"kind": "none"},
    "trained": {"kind": "model", "model": ["ppo-1", "ppo-2", "ppo-3"]},
    "placebo": {"kind": "placebo", "of": "trained"},
}
SEEDS = ("ppo-1", "ppo-2", "ppo-3")


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
    assert "written by the models `ppo-1`, `ppo-2`, `ppo-3`; mean over these training seeds" in report


@pytest.mark.slow
def test_a_single_model_keeps_the_name_of_its_arm_and_a_list_of_one_can_be_extended(tmp_path: Path) -> None:
    with Endpoint() as server:
        arms: Arms = {"frozen": {"kind": "model", "model": "big"}, "trained": {"kind": "model", "model": ["ppo-1"]}}
        config = config_with(tmp_path, server.url, arms)
        compare(config)
        played = facts(config, "eval/trained/ppo-1")
        assert facts(config, "eval/frozen").reflections
        assert played.reflections
        server.requests.clear()
        compare(config_with(tmp_path, server.url, arms, "eval.arms.trained.model=[ppo-1, ppo-2]"))
        probes = [request["model"] for request in server.requests if request["max_tokens"] == 24]
        requests_before = [request["model"] for request in server.requests if request["max_tokens"] != 24]
    assert probes == ["big", "ppo-1", "ppo-2"]
    assert set(requests_before) == {"ppo-2"}
    assert facts(config, "eval/trained/ppo-1") == played


@pytest.mark.slow
def test_a_placebo_does_not_draw_from_another_number_of_seeds(tmp_path: Path) -> None:
    with Endpoint() as server:
        compare(config_with(tmp_path, server.url, POOLED))
        with pytest.raises(ConfigError, match="already holds 'eval/placebo' facts made with sources="):
            compare(config_with(tmp_path, server.url, POOLED, "eval.arms.trained.model=[ppo-1, ppo-2]"))


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
    assert [bound[arm]["reflector"].get("history") for arm in arms] == ["all", None]


def acting(folder: Path, url: str, *overrides: str) -> LoadedConfig:
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


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "eval.arms.nothing.actor_temperature=0.5",
            "eval.arms.nothing.actor_temperature: the rule actor is a program that samples nothing; leave it out, or "
            "set actor.kind.",
        ),
        ("eval.arms.nothing.model=[]", "eval.arms.nothing.model: name at least one model."),
        (
            "eval.arms.nothing.first=true",
            "eval.arms.nothing.first: none advice is about a failure, and before the first attempt there is none; "
            "leave it out.",
        ),
        ("eval.arms.nothing.places=8", "eval.arms.nothing.places: none advice has no limit of places; leave it out."),
        (
            "eval.arms.trained.model=[ppo, ppo]",
            "eval.arms: two arms would be stored as 'eval/trained/ppo'; give one of them another name.",
        ),
        (
            "eval.arms.nothing.actor_model=sac",
            "eval.arms.nothing.actor_model: the rule actor is a program without a model; leave it out, or set "
            "actor.kind.",
        ),
        (
            "eval.arms.trained.actor_model=[]",
            "eval.arms.trained.actor_model: name at least one model, or leave it out.",
        ),
        (
            "eval.arms.trained.actor_model=[a, b]",
            "eval.arms.trained: model and actor_model both name training seeds; give one of them a single name.",
        ),
        (
            "eval.comparisons=[{first: nothing, second: something}]",
            "eval.comparisons: 'something' is not an arm; name one of nothing, trained, placebo.",
        ),
        (
            "eval.comparisons=[{first: nothing, second: trained, trial: 2}]",
            "eval.comparisons: trial 2 is not played with loop.trials=2; the last one is 1.",
        ),
        (
            "eval.arms.nothing.among=same_kind",
            "eval.arms.nothing.among: only a placebo in an environment whose tasks have kinds is limited to some; "
            "leave it out.",
        ),
        (
            "eval.arms.nothing.runs=[other]",
            "eval.arms.nothing.runs: none advice counts no attempts; leave it out, or set "
            "eval.arms.nothing.kind=table.",
        ),
        (
            "eval.arms.nothing.history=last",
            "eval.arms.nothing.history: none advice has no prompt; leave it out, or set eval.arms.nothing.kind=model.",
        ),
        (
            "eval.arms.nothing.file=guide.md",
            "eval.arms.nothing.file: only a document has a file; leave it out, or set eval.arms.nothing.kind=document.",
        ),
        (
            "eval.arms.nothing.kind=document",
            "eval.arms.nothing.file: name the text file of the document.",
        ),
        (
            "eval.arms.trial 0={kind: none}",
            "eval.arms: two arms would be stored as 'eval/trial 0'; give one of them another name.",
        ),
    ],
)
def test_an_arm_that_cannot_be_played_is_refused_before_anything_is(
    tmp_path: Path, override: str, sentence: str
) -> None:
    config = config_with(tmp_path, NOWHERE, POOLED, override)
    with pytest.raises(ConfigError) as caught:
        compare(config)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("kind", ["rule", "oracle"])
def test_advice_about_households_is_refused_elsewhere(tmp_path: Path, kind: str) -> None:
    (tmp_path / "questions.jsonl").write_text('{"id": "a", "question": "Where?", "answer": "Here"}\n')
    (tmp_path / "docstore.jsonl").write_text('{"title": "Here", "sentences": ["It is here."]}\n')
    environment = {"name": "hotpotqa", "data": str(tmp_path), "split": "all"}
    config = HOUSEHOLD | {"environment": environment, "eval": {"arms": {"written": {"kind": kind}}}}
    with pytest.raises(
        ConfigError, match=rf"eval.arms.written.kind: there is no {kind} advice for hotpotqa; take none, phrase, model"
    ):
        compare(open_config(write_config(tmp_path, NOWHERE, config)))


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
    assert "3 of 3 held-out tasks of splits `valid_unseen` (2) and `valid_seen` (1) were finished" in report


def unpack(folder: Path, split: str, count: int) -> list[str]:
    """Unpack the first games of a split; return their ids."""
    pack = GamePack(PACKS / f"{split}.tar.zst")
    chosen = sorted(task_id for task_id in pack.ids() if task_id.startswith("look_at"))[:count]
    for task_id in chosen:
        game = folder / split / task_id / "game.tw-pddl"
        game.parent.mkdir(parents=True)
        game.write_bytes(pack.read(task_id) or b"")
    return chosen
