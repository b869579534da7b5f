"""Evaluation refuses arms that cannot be played, and tasks that were trained on, before anything starts."""

import asyncio
import json
import re
import shutil
import sqlite3
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.play.preflight import (
    check_arms,
    refuse_adapters_trained_on,
    refuse_trained_tasks,
)
from eval.report.report import compare_arms
from retroformer.config.file import load
from retroformer.config.parts import held_out_tasks
from retroformer.errors import ConfigError, EndpointRefusal, MissingInput, ProvenanceError, StoreError
from retroformer.method.records import Key, Outcome, Task
from retroformer.run.promotions import History, roll_back
from retroformer.run.provenance import ADAPTER_FILES, Provenance, ServedModel, folder_sha256
from retroformer.run.store import open_store
from tests.support.arms import NOWHERE, POOLED, compare, config_with
from tests.support.characters import attempt_at
from tests.support.endpoint import Behaviour, Endpoint
from tests.support.facts import add_trajectory
from tests.support.runs import HOUSEHOLD, facts, open_config, write_config

IDS = [f"game-{number:02d}" for number in range(200)]
HELD_OUT, TRAINED_ON = IDS[:20], IDS[20:]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a config that serves adapters of another run as reflectors."""
    monkeypatch.chdir(tmp_path)
    content: dict[str, Any] = deepcopy(HOUSEHOLD)
    content["environment"] |= {"source": "released", "split": "train"}
    del content["environment"]["receptacles"]
    content["reflector"]["endpoint"] = {"model": "sft-1"}
    content["serve"] = {"adapters": {"sft-1": "runs/other/sft", "ppo-1": "runs/other/ppo"}}
    content["eval"]["arms"] = {"trained": {"kind": "model", "model": ["sft-1", "ppo-1"]}}
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def trained(folder: str, tasks: list[str], environment: str = "alfworld", seed: int | None = None) -> None:
    """Write the metrics of an adapter that was trained on these tasks."""
    content = {"training_domains": [{"environment": environment, "seed": seed, "tasks": tasks}]}
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "metrics.json").write_text(json.dumps(content))
    for name in ADAPTER_FILES:
        (Path(folder) / name).write_text(folder)


def refused(config: Path, tasks: list[str], *overrides: str) -> str:
    """Return the message of the refusal, or an empty text."""
    chosen = [Task(id=name, environment="alfworld", split="valid_unseen") for name in tasks]
    try:
        refuse_adapters_trained_on(load(config, overrides), chosen)
    except ConfigError as error:
        return str(error)
    return ""


def test_each_of_twenty_planted_games_is_refused_and_none_of_180_others(config: Path) -> None:
    trained("runs/other/sft", TRAINED_ON)
    assert refused(config, HELD_OUT) == ""
    for planted in HELD_OUT:
        trained("runs/other/ppo", [*TRAINED_ON, planted])
        assert f"such as {planted!r}" in refused(config, HELD_OUT)
    for other in TRAINED_ON:
        trained("runs/other/ppo", [other])
        assert refused(config, HELD_OUT) == ""


def test_the_message_is_one_sentence_with_the_adapter_and_the_way_out(config: Path) -> None:
    trained("runs/other/ppo", HELD_OUT[:3])
    assert refused(config, HELD_OUT) == (
        "3 of 20 evaluation tasks were used to train 'ppo-1' (runs/other/ppo), such as 'game-00': name another split "
        "with eval.split=NAME, or serve another adapter."
    )


def test_the_reward_model_of_best_of_n_and_the_actor_are_checked(config: Path) -> None:
    trained("runs/other/reward", HELD_OUT[:1])
    assert refused(config, HELD_OUT) == ""
    assert "'sft-1+best4' (runs/other/reward)" in refused(config, HELD_OUT, "eval.arms.trained.model=sft-1+best4")
    trained("runs/toy/actor", HELD_OUT[:1])
    player = ("actor.kind=household", "actor.endpoint.model=actor")
    assert "'actor' (runs/toy/actor)" in refused(config, HELD_OUT, *player)
    assert refused(config, HELD_OUT, *player, "actor.endpoint.base_url=http://127.0.0.1:1/v1") == ""


def test_a_pinned_name_is_checked_like_the_adapter(config: Path) -> None:
    trained("runs/other/sft", HELD_OUT[:1])
    assert "'sft-1@0123456789ab'" in refused(config, HELD_OUT, "eval.arms.trained.model=sft-1@0123456789ab")


def test_the_adapter_that_is_served_as_reflector_is_checked(config: Path) -> None:
    reflector = "eval.arms.trained.model=reflector"
    trained("runs/toy/sft", HELD_OUT[:1])
    assert "'reflector' (runs/toy/sft)" in refused(config, HELD_OUT, reflector)
    trained("runs/toy/ppo", TRAINED_ON)
    assert refused(config, HELD_OUT, reflector) == "", "the last finished stage is served"
    history = History(Path("runs/toy"))
    history.append((), "first", history.keep("sft", Path("runs/toy/sft")), "nothing was served before")
    assert "'reflector' (runs/toy/promotions/adapters/" in refused(config, HELD_OUT, reflector)
    roll_back(history, history.records(), "It is worse.")
    assert refused(config, HELD_OUT, reflector) == "", "no advice is served"
    trained("runs/other/ppo", HELD_OUT)
    assert "(runs/other/ppo)" in refused(config, HELD_OUT, reflector, "serve.adapters.reflector=runs/other/ppo")


def test_a_training_task_that_was_solved_at_once_is_refused_like_one_with_advice(config: Path) -> None:
    names = ("owner/repo@0123456789ab", "owner/repo")
    solved, other = (Task(id=name, environment="alfworld", split="train") for name in names)
    with closing(open_store(load(config))) as store:
        add_trajectory(store, Key(arm="collect", task_id=solved.id), attempt_at(solved, (1.0,), Outcome.SUCCESS))
        refuse_trained_tasks(store, [other])
        with pytest.raises(ConfigError, match=f"1 of 2 evaluation tasks were used for training, such as '{names[0]}'"):
            refuse_trained_tasks(store, [solved, other])


def test_a_task_on_whose_failures_the_document_of_an_arm_was_optimised_is_refused(config: Path) -> None:
    guide = "eval.arms={guide: {kind: document, file: runs/other/gepa/document.md}}"
    opened = open_config(config, "environment.source=generated", "eval.split=held_out", "eval.tasks=2", guide)
    played = held_out_tasks(opened.experiment)[1]
    with closing(open_store(load(config, ["run=other"]))) as store:
        add_trajectory(store, Key(arm="collect", task_id=played.id), attempt_at(played))
    with pytest.raises(ConfigError, match=f"1 of 2 evaluation tasks were used for training, such as '{played.id}'"):
        compare(opened)


def test_equal_ids_of_another_environment_or_seed_are_other_tasks(config: Path) -> None:
    trained("runs/other/ppo", HELD_OUT, environment="webshop")
    assert refused(config, HELD_OUT) == ""
    trained("runs/other/ppo", HELD_OUT, seed=1)
    assert refused(config, HELD_OUT) == ""
    generated = "environment.source=generated"
    assert refused(config, HELD_OUT, generated, "seed=2") == ""
    assert refused(config, HELD_OUT, generated, "seed=1") != ""


def test_adapters_without_a_record_and_other_models_of_a_server_elsewhere_pass(config: Path) -> None:
    trained("runs/other/ppo", HELD_OUT)
    (Path("runs/other/ppo") / "metrics.json").write_text('{"stage": "ppo"}')
    assert refused(config, HELD_OUT) == ""
    trained("runs/other/ppo", HELD_OUT)
    elsewhere = "reflector.endpoint.base_url=http://127.0.0.1:1/v1"
    assert refused(config, HELD_OUT, elsewhere, "eval.arms.trained.model=big") == ""
    assert "20 of 20 evaluation tasks were used to train 'ppo-1'" in refused(config, HELD_OUT, elsewhere)


def test_nothing_is_played_if_an_adapter_was_trained_on_a_held_out_task(config: Path) -> None:
    opened = open_config(config, "environment.source=generated", "eval.split=held_out", "eval.tasks=5")
    first = held_out_tasks(opened.experiment)[0].id
    trained("runs/other/sft", [first], seed=opened.experiment.seed)
    with pytest.raises(ConfigError, match="1 of 5 evaluation tasks were used to train 'sft-1'"):
        asyncio.run(compare_arms(opened))


@pytest.mark.parametrize("run", ["toy", "other"])
def test_a_damaged_store_of_this_run_or_of_an_arms_is_refused_before_anything_is_played(config: Path, run: str) -> None:
    arms = "eval.arms={table: {kind: table, runs: [other]}}"
    generated = ("environment.source=generated", "eval.split=held_out", "eval.tasks=2")
    opened = open_config(config, *generated, arms, "run=toy")
    with closing(open_store(load(config, [f"run={run}"]))) as store:
        add_trajectory(store, Key(arm="collect", task_id="a game"), attempt_at())
    with closing(sqlite3.connect(f"runs/{run}/experience.db")) as connection, connection:
        connection.execute("UPDATE trajectories SET episode_return = 1.0")
    with pytest.raises(StoreError, match="is damaged"):
        asyncio.run(compare_arms(opened))
    assert not facts(opened, "eval/trial 0").trajectories


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "eval.arms.nothing.actor_temperature=0.5",
            "eval.arms.nothing.actor_temperature: the rule actor is a program that samples nothing; leave it out, or "
            "set actor.kind.",
        ),
        (
            "eval.arms.nothing.actor_model=sac",
            "eval.arms.nothing.actor_model: the rule actor is a program without a model; leave it out, or set "
            "actor.kind.",
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
            f"eval.arms.{'a' * 600}={{kind: none}}",
            f"eval.arms: the name 'eval/{'a' * 35}'... has more than 500 bytes; shorten it.",
        ),
        (
            "eval.arms.trial 0={kind: none}",
            "eval.arms: two arms would be stored as 'eval/trial 0'; give one of them another name.",
        ),
        (
            "eval.arms.nothing.kind=teacher",
            "eval.arms.nothing.kind: the config has no teacher; name its base_url and model in reflector.teacher, or "
            "leave the arm out.",
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


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        (
            "nothing.places=8",
            "places: Extra inputs are not permitted. It is a setting of kind rule or history_rule or ",
        ),
        ("nothing.history=last", "history: Extra inputs are not permitted. It is a setting of kind model."),
        ("nothing.first=true", "first: Extra inputs are not permitted. It is a setting of kind phrase or document or "),
        ("placebo.kind=none", "of: Extra inputs are not permitted. It is a setting of kind placebo."),
        ("placebo.amnog=any", "amnog: Extra inputs are not permitted. Did you mean `among`?"),
        ("nothing.kind=document", "file: Field required."),
        (
            "nothing.kind=nothing",
            "kind: there is no nothing advice for alfworld; take none, phrase, placebo, ",
        ),
        ("nothing.kind=[none]", "kind: there is no ['none'] advice for alfworld; take none, phrase, placebo, "),
        ("trained.model=[]", "model: name at least one model. Found []."),
        ("trained.actor_model=[]", "actor_model: name at least one model. Found []."),
        ("trained.model=[ppo, ppo]", "model: two models would be stored under one name; leave one of "),
        ("trained.actor_model=[a, b]", "model and actor_model both name training seeds; give one of "),
    ],
)
def test_a_setting_that_a_kind_of_arm_does_not_have_cannot_be_written(
    tmp_path: Path, override: str, fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config_with(tmp_path, NOWHERE, POOLED, f"eval.arms.{override}")
    arm = override.partition(".")[0]
    assert re.search(rf"^  eval\.arms\.{arm}[.:] ?{re.escape(fault)}", str(caught.value), re.MULTILINE)


@pytest.mark.parametrize("kind", ["rule", "oracle"])
def test_advice_about_households_is_refused_elsewhere(tmp_path: Path, kind: str) -> None:
    (tmp_path / "questions.jsonl").write_text('{"id": "a", "question": "Where?", "answer": "Here"}\n')
    (tmp_path / "docstore.jsonl").write_text('{"title": "Here", "sentences": ["It is here."]}\n')
    environment = {"name": "hotpotqa", "data": str(tmp_path), "split": "all"}
    config = HOUSEHOLD | {"environment": environment, "eval": {"arms": {"written": {"kind": kind}}}}
    with pytest.raises(
        ConfigError,
        match=rf"eval.arms.written.kind: there is no {kind} advice for hotpotqa; take none, phrase, placebo",
    ):
        open_config(write_config(tmp_path, NOWHERE, config))


def test_a_placebo_cannot_be_limited_where_tasks_have_no_kinds(tmp_path: Path) -> None:
    environment = {"name": "hotpotqa", "data": str(tmp_path), "split": "all"}
    arms = {"phrase": {"kind": "phrase"}, "placebo": {"kind": "placebo", "of": "phrase", "among": "same_kind"}}
    config = HOUSEHOLD | {"environment": environment, "actor": {"kind": "react"}, "eval": {"arms": arms}}
    with pytest.raises(ConfigError, match=r"eval\.arms\.placebo\.among: tasks of this environment have no kinds"):
        check_arms(open_config(write_config(tmp_path, NOWHERE, config)).experiment)


def test_best_of_n_at_temperature_0_is_refused(config: Path) -> None:
    best = "eval.arms.trained.model=sft-1+best3"
    with pytest.raises(ConfigError, match=r"eval\.arms\.trained\.model: .*set it above 0"):
        check_arms(load(config, [best, "reflector.temperature=0"]))


def test_an_arm_that_was_not_trained_is_one_sentence_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arms = {"trained": {"kind": "model", "model": "sft"}, "chosen": {"kind": "model", "model": "base+best8"}}
    for name, stage, later in (("trained", "sft", ""), ("chosen", "reward", ""), ("chosen", "reward", " round=2")):
        overrides = ("reflector.endpoint.base_url=", *later.split())
        config = config_with(tmp_path, NOWHERE, {name: arms[name]}, *overrides)
        folder = f"runs/toy/{stage}{'-2' if later else ''}"
        sentence = f"there is none in {folder}: train it with `retroformer train {stage} EXPERIMENT.yaml{later}`"
        with pytest.raises(MissingInput, match=sentence):
            compare(config)


def test_a_server_elsewhere_answers_as_a_trained_arm_only_with_its_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "key from a file\n")
    model = ServedModel(base_sha256="b" * 64, adapter_sha256="a" * 64, chat_template_sha256="c" * 64)
    plain = model.model_copy(update={"adapter_sha256": None})
    arms = {"trained": {"kind": "model", "model": "sft"}, "teacher": {"kind": "model", "model": "big"}}
    with Endpoint() as server:
        config = config_with(tmp_path, server.url, arms, "eval.tasks=2")

        def refusal(**models: ServedModel) -> str:
            server.provenance = Provenance(models=models, dtype="float32", versions={}).model_dump_json()
            with pytest.raises(ProvenanceError) as caught:
                compare(config)
            assert not facts(config, "eval/trial 0").trajectories, "nothing was played"
            return str(caught.value)

        with pytest.raises(ProvenanceError, match="does not prove that it answers with the adapter 'sft'"):
            compare(config)
        server.behaviour = Behaviour.UNAUTHORIZED
        with pytest.raises(EndpointRefusal, match=r"/provenance answered 401: it needs another API key.*\.$"):
            compare(config)
        server.behaviour, server.key = Behaviour.WELL, "key from a file"
        assert "serves no adapter 'sft': serve it there" in refusal(sft=plain)
        trained("runs/toy/sft", [])
        assert "The server answers with another adapter than runs/toy/sft holds" in refusal(sft=model)
        own = model.model_copy(update={"adapter_sha256": folder_sha256(Path("runs/toy/sft"))})
        server.provenance = Provenance(models={"sft": own}, dtype="float32", versions={}).model_dump_json()
        report = compare(config)
        (Path("runs/toy/sft") / "metrics.json").unlink()
        without_record = compare(config)
        before = facts(config, "eval/trained")
        Path("runs/toy/sft/adapter_model.safetensors").write_bytes(b"trained again")
        own = model.model_copy(update={"adapter_sha256": folder_sha256(Path("runs/toy/sft"))})
        server.provenance = Provenance(models={"sft": own}, dtype="float32", versions={}).model_dump_json()
        shutil.rmtree("runs/toy/sft")
        without_folder = compare(config)
        server.provenance = Provenance(models={"sft": own}, dtype="bfloat16", versions={}).model_dump_json()
        with pytest.raises(ConfigError, match=r"reflector\.endpoint\.dtype"):
            compare(config)
    with closing(open_store(config.experiment)) as store:
        [again] = [arm for arm in store.arms() if arm.startswith("eval/trained@")]
    assert facts(config, "eval/trained").same_as(before)
    assert {stored.reflection.author.adapter_sha256 for stored in facts(config, again).reflections} == {
        own.adapter_sha256
    }
    assert "| sft | " in report
    assert "yes: hash and pinned name match the folder of this run" in report
    assert "| 0 tasks, none of these |" in report
    assert "| not recorded |" in without_record
    assert "| as the server reports: there is no folder here to compare it with |" in without_folder
    assert "| not verified: the endpoint cannot prove it |" in report, "the teacher"


def test_evaluation_tasks_that_begin_as_training_tasks_of_other_ids_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_with(tmp_path, NOWHERE, {"alone": {"kind": "none"}}, "eval.tasks=2")
    compare(config)
    assert "begin as training tasks" not in caplog.text
    key, played = list(facts(config, "eval/trial 0").trajectories.items())[1]
    old = Task(id="another id", environment="alfworld", split="train")
    same = attempt_at(old).model_copy(update={"opening": f" {played.opening.upper()}"})
    with closing(open_store(config.experiment)) as store:
        add_trajectory(store, Key(arm="collect", task_id=old.id), same)
    compare(config)
    assert f"1 of 2 evaluation tasks begin as training tasks do, such as {key.task_id!r} as 'another id'" in caplog.text
