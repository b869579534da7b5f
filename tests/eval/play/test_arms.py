"""Arms of each kind, played on generated games by real components: what each gives and reads."""

import asyncio
import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from collect.rate import rate_reflections
from retroformer.agents.arms.baselines import PHRASES
from retroformer.environments.alfworld.advice_reader import read_advice
from retroformer.environments.alfworld.advice_writer import advice_on_places
from retroformer.environments.alfworld.attempt_reader import view_of
from retroformer.environments.alfworld.hindsight import PlaceTable
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, MissingInput
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import open_store
from tests.support.arms import NOWHERE, Arms, compare, config_with, solved, texts
from tests.support.data import DATA
from tests.support.endpoint import Endpoint
from tests.support.runs import HOUSEHOLD, facts, open_config

PACKS = DATA / "alfworld"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


WRITTEN: Arms = {
    "nothing": {"kind": "none"},
    "phrase": {"kind": "phrase"},
    "rule": {"kind": "rule"},
    "unseen": {"kind": "rule", "wording": "unseen"},
    "oracle": {"kind": "oracle"},
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
    evaluation = HOUSEHOLD["eval"] | {"arms": arms}
    config = HOUSEHOLD | {"reflector": {"view": "compact"}, "eval": evaluation}
    path = tmp_path / "local.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    report = compare(open_config(path, "loop.trials=2", "train.base_model=/nowhere"))
    assert "## Served models" not in report
    assert all(f"| {arm} |" in report for arm in arms)


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


def test_rules_write_in_the_words_of_the_config(tmp_path: Path) -> None:
    arms: Arms = {"rule": {"kind": "history_rule"}, "demonstrated": {"kind": "rule", "wording": "demonstrated"}}
    config = config_with(tmp_path, NOWHERE, arms, "eval.tasks=8", "environment.wording=unseen")
    compare(config)
    unseen, demonstrated = (texts(config, arm) for arm in arms)
    assert demonstrated.keys() == unseen.keys()
    assert all(text and text != demonstrated[task] for task, text in unseen.items())


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
