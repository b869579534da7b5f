"""Ways to retry, played on generated games by real parts: what each arm reads, and what cannot be played is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from collect.rate import rate_reflections
from eval.compare import compare_arms
from retroformer.arms import FIRST_TRIAL
from retroformer.assembly import Page
from retroformer.environments.alfworld.packs import Pack
from retroformer.errors import ConfigError, MissingInput
from retroformer.records import Key, Outcome, Trajectory
from retroformer.reflectors.wording import PHRASES
from tests.support.data import DATA, needs_data
from tests.support.endpoint import Endpoint, prompt_of
from tests.support.runs import HOUSEHOLD, facts, open_page, write_page

PACKS = DATA / "alfworld"
NOWHERE = "http://127.0.0.1:1/v1"
Arms = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def page_with(folder: Path, url: str, arms: Arms, *overrides: str) -> Page:
    """The household experiment with these arms and two trials."""
    page = HOUSEHOLD | {"eval": HOUSEHOLD["eval"] | {"arms": arms, "reference": next(iter(arms))}}
    return open_page(write_page(folder, url, page), "loop.trials=2", *overrides)


def compare(page: Page) -> str:
    """The report in Markdown."""
    asyncio.run(compare_arms(page))
    return (page.experiment.folder / "eval" / "report.md").read_text()


def texts(page: Page, arm: str) -> dict[str, str]:
    """What an arm wrote after trial 0, by task."""
    return {one.key.task_id: one.reflection.text for one in facts(page, f"eval/{arm}").reflections}


WRITTEN: Arms = {
    "nothing": {"kind": "none"},
    "phrase": {"kind": "phrase"},
    "rule": {"kind": "rule"},
    "unseen": {"kind": "rule", "wording": "unseen"},
    "oracle": {"kind": "oracle"},
    "oracle, unseen": {"kind": "oracle", "wording": "unseen"},
    "placebo": {"kind": "placebo", "of": "oracle"},
}


def test_arms_without_a_model_say_what_they_are_called(tmp_path: Path) -> None:
    page = page_with(tmp_path, NOWHERE, WRITTEN, "eval.tasks=12")
    report = compare(page)
    failed = {key.task_id for key, one in facts(page, FIRST_TRIAL).trajectories.items() if not solved(one)}
    said = {arm: texts(page, arm) for arm in WRITTEN}
    assert len(failed) >= 4
    assert all(one.keys() == failed for one in said.values())
    assert set(said["nothing"].values()) == {""}
    assert set(said["phrase"].values()) <= set(PHRASES)
    assert len(set(said["phrase"].values())) > 1
    assert all(said["placebo"][task] in set(said["oracle"].values()) - {said["oracle"][task]} for task in failed)
    assert not set(said["rule"].values()) & set(said["unseen"].values())
    assert not set(said["oracle"].values()) & set(said["oracle, unseen"].values())
    won = {arm: sum(map(solved, facts(page, f"eval/{arm}").trajectories.values())) for arm in WRITTEN}
    assert won["nothing"] == won["phrase"] == 0
    # A program reads the plain words of the oracle as they are meant; what the others mean to it is not promised.
    assert won["oracle"] >= won["rule"] > 0
    assert won["oracle"] > won["placebo"]
    assert f"## Of the {len(failed)} tasks failed at trial 0" in report
    assert "- **oracle** (a yardstick) solves more tasks than *nothing*" in report
    assert "The actor is a program (kind `rule`)" in report
    assert "at most 9 actions (`loop.actions`; the environment itself ends it after 20)" in report


def solved(attempt: Trajectory) -> bool:
    return attempt.outcome is Outcome.SUCCESS


def test_advice_of_training_tasks_can_be_retrieved_and_says_where_it_comes_from(tmp_path: Path) -> None:
    arms: Arms = {"nothing": {"kind": "none"}, "remembered": {"kind": "retrieved"}}
    with Endpoint() as server:
        page = page_with(tmp_path, server.url, arms, "collect.tasks=8", "eval.tasks=12")
        asyncio.run(rate_reflections(page))
        asked = len(server.requests)
        report = compare(page)
        assert len(server.requests) == asked, "nothing is written anew"
    written = {one.reflection.text for one in facts(page, "collect").reflections}
    given = facts(page, "eval/remembered").reflections
    assert given
    assert {one.reflection.text for one in given} <= written
    assert all(one.reflection.author.endpoint == "memory" for one in given)
    assert all(one.reflection.author.model.startswith("toy/collect/") for one in given)
    assert "what was written for other tasks while collecting" in report


def test_without_experience_there_is_nothing_to_retrieve(tmp_path: Path) -> None:
    page = page_with(tmp_path, NOWHERE, {"nothing": {"kind": "none"}, "remembered": {"kind": "retrieved"}})
    with pytest.raises(MissingInput, match="python -m collect"):
        compare(page)


POOLED: Arms = {
    "nothing": {"kind": "none"},
    "trained": {"kind": "model", "model": ["ppo-1", "ppo-2", "ppo-3"]},
    "placebo": {"kind": "placebo", "of": "trained"},
}
SEEDS = ("ppo-1", "ppo-2", "ppo-3")


def test_training_seeds_are_played_apart_and_reported_as_one(tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> str:
        return f"{body['model']} says nothing about the {len(prompt_of(body))} letters it read."

    with Endpoint(reply) as server:
        page = page_with(tmp_path, server.url, POOLED, "eval.tasks=12")
        report = compare(page)
    failed = {key.task_id for key, one in facts(page, FIRST_TRIAL).trajectories.items() if not solved(one)}
    for seed in SEEDS:
        assert texts(page, f"trained/{seed}").keys() == failed
        assert all(text.startswith(seed) for text in texts(page, f"trained/{seed}").values())
        assert f"| trained/{seed} |" in report
    assert facts(page, "eval/trained").counts == (0, 0)
    dealt = {text.partition(" ")[0] for text in texts(page, "placebo").values()}
    assert len(dealt) > 1
    assert dealt <= set(SEEDS)
    assert "by the models `ppo-1`, `ppo-2`, `ppo-3`; a mean over these training seeds" in report


def test_a_single_model_keeps_the_name_of_its_arm_and_a_list_of_one_can_grow(tmp_path: Path) -> None:
    with Endpoint() as server:
        arms: Arms = {"frozen": {"kind": "model", "model": "big"}, "trained": {"kind": "model", "model": ["ppo-1"]}}
        page = page_with(tmp_path, server.url, arms)
        compare(page)
        played = facts(page, "eval/trained/ppo-1")
        assert facts(page, "eval/frozen").reflections
        assert played.reflections
        server.requests.clear()
        compare(page_with(tmp_path, server.url, arms, "eval.arms.trained.model=[ppo-1, ppo-2]"))
        probes = [request["model"] for request in server.requests if request["max_tokens"] == 24]
        asked = [request["model"] for request in server.requests if request["max_tokens"] != 24]
    assert probes == ["big", "ppo-1", "ppo-2"]
    assert set(asked) == {"ppo-2"}
    assert facts(page, "eval/trained/ppo-1") == played


def test_a_placebo_is_not_dealt_out_of_another_number_of_seeds(tmp_path: Path) -> None:
    with Endpoint() as server:
        compare(page_with(tmp_path, server.url, POOLED))
        with pytest.raises(ConfigError, match="already holds 'eval/placebo' facts made with sources="):
            compare(page_with(tmp_path, server.url, POOLED, "eval.arms.trained.model=[ppo-1, ppo-2]"))


def acting(folder: Path, url: str, *overrides: str) -> Page:
    """The same games played by a language model at this address."""
    arms = {"nothing": {"kind": "none"}, "sampled": {"kind": "none", "actor_temperature": 0.7}}
    own = (f"actor.endpoint.base_url={url}", "actor.kind=react", "loop.actions=4", "loop.trials=3")
    return page_with(folder, url, arms, *own, *overrides)


def test_an_arm_can_be_played_by_the_same_actor_at_a_temperature_and_repeats(tmp_path: Path) -> None:
    with Endpoint() as server:
        first, again = acting(tmp_path, server.url), acting(tmp_path, server.url, "run=again", "loop.concurrency=2")
        report = compare(first)
        asked = {(request["temperature"], "seed" in request) for request in server.requests}
        compare(again)
    sampled = facts(first, "eval/sampled").trajectories
    assert asked == {(0.0, False), (0.7, True)}
    assert sampled == facts(again, "eval/sampled").trajectories
    assert "| sampled | none: the retry alone | at temperature 0.7 |" in report
    greedy = {key.task_id: one for key, one in facts(first, FIRST_TRIAL).trajectories.items()}
    nothing = facts(first, "eval/nothing").trajectories
    assert all(one.steps == greedy[key.task_id].steps for key, one in nothing.items())
    # The same prompt at each trial, so only its seed can make one differ from the other.
    second = [key for key in sampled if key.trial == 2]
    assert second
    assert any(sampled[key].steps != sampled[trial_1(key)].steps for key in second)


def trial_1(key: Key) -> Key:
    return key.model_copy(update={"trial": 1})


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "eval.arms.nothing.actor_temperature=0.5",
            "eval.arms.nothing.actor_temperature: the rule-based actor draws nothing; leave it out, or set actor.kind.",
        ),
        ("eval.arms.nothing.model=[]", "eval.arms.nothing.model: name a model, or several."),
        (
            "eval.arms.trained.model=[ppo, ppo]",
            "eval.arms: two arms would be stored as 'eval/trained/ppo'; give one of them another name.",
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
    page = page_with(tmp_path, NOWHERE, POOLED, override)
    with pytest.raises(ConfigError) as caught:
        compare(page)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("kind", ["rule", "oracle"])
def test_advice_about_households_is_refused_elsewhere(tmp_path: Path, kind: str) -> None:
    (tmp_path / "questions.jsonl").write_text('{"id": "a", "question": "Where?", "answer": "Here"}\n')
    (tmp_path / "docstore.jsonl").write_text('{"title": "Here", "sentences": ["It is here."]}\n')
    environment = {"name": "hotpotqa", "data": str(tmp_path), "split": "all"}
    page = HOUSEHOLD | {"environment": environment, "eval": {"arms": {"known": {"kind": kind}}}}
    with pytest.raises(ConfigError, match=rf"eval.arms.known.kind: {kind} advice is written for ALFWorld only"):
        compare(open_page(write_page(tmp_path, NOWHERE, page)))


@needs_data("alfworld/valid_seen.tar.zst")
def test_several_splits_are_played_as_one(tmp_path: Path) -> None:
    chosen = {split: unpack(tmp_path / "games", split, 2) for split in ("valid_seen", "valid_unseen")}
    arms: Arms = {"nothing": {"kind": "none"}, "oracle": {"kind": "oracle"}}
    released = "environment={name: alfworld, data: games, split: train}"
    page = page_with(tmp_path, NOWHERE, arms, released, "eval.split=[valid_unseen, valid_seen]", "eval.tasks=3")
    report = compare(page)
    played = {key.task_id: one.task.split for key, one in facts(page, FIRST_TRIAL).trajectories.items()}
    unseen, seen = chosen["valid_unseen"], chosen["valid_seen"]
    assert played == dict.fromkeys(unseen, "valid_unseen") | {seen[0]: "valid_seen"}
    assert "3 of 3 held-out tasks of splits `valid_unseen` (2) and `valid_seen` (1) were finished" in report


def unpack(folder: Path, split: str, count: int) -> list[str]:
    """The first games of a split as files; their ids."""
    pack = Pack(PACKS / f"{split}.tar.zst")
    chosen = sorted(one for one in pack.ids() if one.startswith("look_at"))[:count]
    for task_id in chosen:
        game = folder / split / task_id / "game.tw-pddl"
        game.parent.mkdir(parents=True)
        game.write_bytes(pack.read(task_id) or b"")
    return chosen
