"""Arms share a first attempt exactly if it is played under the same conditions, and the report says which do."""

import asyncio
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eval.play.evaluation import Evaluation, declare
from eval.report.report import compare_arms
from retroformer.coach.stories.reading import read_story, story_arms
from retroformer.config.file import Config
from retroformer.config.parts import Connections, Parts, chosen_tasks
from retroformer.errors import ConfigError
from retroformer.method.records import Key, Usage
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.attempts import Budget
from retroformer.run.ledger import Ledger
from retroformer.run.provenance import Provenance, ServedModel
from retroformer.run.store import NewTrajectory, open_store
from tests.support.arms import config_with
from tests.support.characters import attempt_at
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.runs import HOUSEHOLD, facts, open_config, write_config

OWN = "eval/prompts own.yaml/trial 0"
ARMS = {
    "plain": {"kind": "none"},
    "own": {"kind": "none", "prompts": "own.yaml"},
    "own, told": {"kind": "phrase", "prompts": "own.yaml"},
}


def look_or_wait(body: Body) -> str:
    """Look around with the pack of the test, and wait with the shipped one."""
    return "Action 1: " + ("look" if "Look well." in prompt_of(body) else "inventory")


def config_at(folder: Path, url: str, *overrides: str) -> Config:
    (folder / "own.yaml").write_text("extends: default\nact: Look well.\n")
    actor = {"kind": "react", "endpoint": {"base_url": url, "model": "actor"}}
    section = HOUSEHOLD["eval"] | {"arms": ARMS, "tasks": 4}
    path = write_config(folder, url, HOUSEHOLD | {"actor": actor, "eval": section})
    return open_config(path, "loop.trials=2", "loop.actions=3", *overrides)


def test_arms_share_a_first_attempt_exactly_if_it_is_played_with_the_same_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Endpoint(look_or_wait) as server:
        config = config_at(tmp_path, server.url)
        asyncio.run(compare_arms(config))
        calls = Counter("Look well." in prompt_of(body) for body in server.requests)
        report = (config.experiment.folder / "eval" / "report.md").read_text()
        asyncio.run(compare_arms(config))
        assert len(server.requests) == calls.total(), "nothing is played twice"
    # Four tasks of three actions each: a trial 0 and a retry without prompts, a trial 0 and two retries with them.
    assert calls == {False: 4 * 3 * 2, True: 4 * 3 * 3}
    for arm, action in {FIRST_TRIAL: "inventory", OWN: "look"}.items():
        played = facts(config, arm).trajectories
        assert len(played) == 4
        assert {step.action for attempt in played.values() for step in attempt.steps} == {action}
    with closing(open_store(config.experiment)) as store:
        assert list(story_arms(store)) == ["eval/own", "eval/own, told", "eval/plain"]
        task_id = next(iter(played)).task_id
        for name in ("own", "own, told"):
            story = read_story(store, f"eval/{name}", task_id)
            assert story is not None
            assert [turn.key.arm for turn in story.turns] == [OWN, f"eval/{name}"]
    assert "| own | none: retry without advice | the prompts `own.yaml` from the first attempt on |" in report
    assert "trial 0 shared, except by own, own, told;" in report
    assert "| trial 0, shared |" in report
    assert "| trial 0 of own, own, told |" in report
    assert (
        "These tasks failed at the trial 0 of *plain*. Arms that played another trial 0, and may have solved such a "
        "task at once: *own*, *own, told*."
    ) in report


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor.kind=rule", "eval.arms.own.prompts: the rule actor reads no prompt pack; leave it out"),
        ("actor.prompts=own.yaml", "eval.arms.own.prompts: 'own.yaml' is actor.prompts already; leave it out."),
    ],
)
def test_prompts_of_an_arm_that_would_do_nothing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(compare_arms(config_at(tmp_path, "http://127.0.0.1:1/v1", override)))


def test_an_adapter_that_was_trained_again_is_played_anew_and_all_other_facts_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arms = {
        "nothing": {"kind": "none"},
        "trained": {"kind": "model", "model": "sft"},
        "placebo": {"kind": "placebo", "of": "trained"},
        "frozen": {"kind": "model", "model": "base"},
    }
    config = config_with(tmp_path, "http://127.0.0.1:1/v1", arms, "reflector.endpoint.base_url=", "eval.tasks=2")
    experiment = config.experiment
    tasks = chosen_tasks(experiment, 2, experiment.held_out_splits)

    def names(adapter: str, base: str = "b") -> list[str]:
        """Return the names in the store under which the arms are played with this adapter, and play them."""
        plain = ServedModel(base_sha256=base, adapter_sha256=None, chat_template_sha256="t")
        models = {"base": plain, "sft": plain.model_copy(update={"adapter_sha256": adapter})}
        provenance = Provenance(models=models, dtype="float32", versions={})
        nothing: Any = None
        components = Parts(nothing, nothing, None, Connections(None), experiment, {None: provenance})
        with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
            budget = Budget(experiment.eval, Usage)
            evaluation = Evaluation(config, components, ledger, tasks, asyncio.Semaphore(1), budget)
            declare(evaluation)
            assert list(evaluation.stored_names) == list(arms), "the report has the order of the config"
            for name in evaluation.arms:
                key = Key(arm=name, task_id=tasks[0].id, trial=1)
                store.add([NewTrajectory(key, attempt_at(tasks[0]))])
            return list(evaluation.arms)

    first = names("one")
    assert first == ["eval/nothing", "eval/trained", "eval/placebo", "eval/frozen"]
    assert names("one") == first
    second = names("two")
    assert second[::3] == first[::3]
    assert second[1].startswith("eval/trained@")
    assert second[2].startswith("eval/placebo@")
    assert names("two") == second
    assert names("one") == first, "the facts of the first adapter are still there"
    assert len({*first, *second, *names("three")}) == 8
    with pytest.raises(ConfigError, match="base_sha256='b', not 'other'"):
        names("two", base="other")
