"""Evaluation refuses tasks that a served adapter was trained on in another run, before anything starts."""

import asyncio
import json
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.play.compare import compare_arms
from eval.play.overlap import refuse_adapters_trained_on, refuse_tasks_of_runs, refuse_trained_tasks
from retroformer.environments.registry import taskset
from retroformer.errors import ConfigError
from retroformer.experiment.file import load
from retroformer.experiment.storage import open_store
from retroformer.promotions.history import History, roll_back
from retroformer.provenance import ADAPTER_FILES
from retroformer.records import Key, Outcome, Task
from tests.support.characters import attempt_at
from tests.support.runs import HOUSEHOLD, open_config

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


def trained(folder: str, tasks: list[str], **facts: Any) -> None:
    """Write the metrics of an adapter that was trained on these tasks."""
    content = {"training_environment": "alfworld", "training_seed": None, "training_tasks": tasks, **facts}
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
    solved, other = (Task(id=name, environment="alfworld", split="train") for name in HELD_OUT[:2])
    with closing(open_store(load(config))) as store:
        store.add_trajectory(Key(arm="collect", task_id=solved.id), attempt_at(solved, (1.0,), Outcome.SUCCESS))
        refuse_trained_tasks(store, [other])
        with pytest.raises(ConfigError, match="1 of 2 evaluation tasks were used for training, such as 'game-00'"):
            refuse_trained_tasks(store, [solved, other])


def test_a_task_on_whose_failures_the_document_of_an_arm_was_optimised_is_refused(config: Path) -> None:
    played, other = (Task(id=name, environment="alfworld", split="train") for name in HELD_OUT[:2])
    with closing(open_store(load(config, ["run=other"]))) as store:
        store.add_trajectory(Key(arm="collect", task_id=played.id), attempt_at(played))
    experiment = load(config, ["eval.arms={guide: {kind: document, file: runs/other/gepa/document.md}}"])
    refuse_tasks_of_runs(experiment, [other])
    with pytest.raises(ConfigError, match="1 of 2 evaluation tasks were used for training, such as 'game-00'"):
        refuse_tasks_of_runs(experiment, [played, other])


def test_equal_ids_of_another_environment_or_seed_are_other_tasks(config: Path) -> None:
    trained("runs/other/ppo", HELD_OUT, training_environment="webshop")
    assert refused(config, HELD_OUT) == ""
    trained("runs/other/ppo", HELD_OUT, training_seed=1)
    assert refused(config, HELD_OUT) == ""
    generated = "environment.source=generated"
    assert refused(config, HELD_OUT, generated, "seed=2") == ""
    assert refused(config, HELD_OUT, generated, "seed=1") != ""


def test_adapters_without_a_record_and_addresses_of_other_servers_pass(config: Path) -> None:
    trained("runs/other/ppo", HELD_OUT)
    (Path("runs/other/ppo") / "metrics.json").write_text('{"stage": "ppo"}')
    assert refused(config, HELD_OUT) == ""
    trained("runs/other/ppo", HELD_OUT)
    assert refused(config, HELD_OUT, "reflector.endpoint.base_url=http://127.0.0.1:1/v1") == ""


def test_nothing_is_played_if_an_adapter_was_trained_on_a_held_out_task(config: Path) -> None:
    opened = open_config(config, "environment.source=generated", "eval.split=held_out", "eval.tasks=5")
    section = opened.experiment.environment.model_copy(update={"split": "held_out"})
    first = taskset(section, opened.experiment.seed).tasks()[0].id
    trained("runs/other/sft", [first], training_seed=opened.experiment.seed)
    with pytest.raises(ConfigError, match="1 of 5 evaluation tasks were used to train 'sft-1'"):
        asyncio.run(compare_arms(opened))
