"""SAC as a stage, on an environment of an outside package: it learns, resumes bit by bit, and its actor is served."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.report.report import compare_arms
from retroformer.config.file import load
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput
from retroformer.method.records import Outcome
from tests.support import locked_door
from tests.support.runs import ROOT, facts, open_config
from tests.support.webshop import write_shop
from tests.train.killed import copy_of_run, kill_at, train_in
from tests.train.world import metrics
from train.__main__ import main
from train.sac.play import offers_of


@pytest.fixture(autouse=True)
def _installed(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the environment for this process and for those that it starts."""
    locked_door.install(workplace / "site")
    monkeypatch.syspath_prepend(str(workplace / "site"))
    monkeypatch.setenv("PYTHONPATH", f"{workplace / 'site'}{os.pathsep}{ROOT}")


def write_config(folder: Path, base: Path, **sac: Any) -> Path:
    train = {
        "base_model": str(base),
        "quantization": "none",
        "dtype": "float32",
        "report_to": "none",
        "sac": {"learning_rate": 1e-2} | sac,
    }
    content = {
        "run": "tiny",
        "environment": {"name": "locked_door"},
        "loop": {"trials": 2, "retries": 0},
        "actor": {"kind": "chooser", "endpoint": {"model": "base", "api": "completions"}},
        "reflector": {"view": "short"},
        "train": train | {"max_length": 200},
        "serve": {"port": 0},
        "eval": {
            "split": "held_out",
            "arms": {"again": {"kind": "none"}, "SAC": {"kind": "none", "actor_model": "sac"}},
        },
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
def test_the_actor_learns_to_solve_its_tasks_and_plays_alone_in_an_arm(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ALPHA", 0.1), ("POLYAK", 0.98), ("STEPS_PER_UPDATE", 1), ("MICRO_BATCH_SIZE", 8)):
        monkeypatch.setattr(f"train.sac.sac.{name}", value)
    config = write_config(workplace, tiny_base, episodes=127)
    with pytest.raises(MissingInput, match=r"No adapter 'sac' is served.*run `retroformer train sac EXPERIMENT.yaml`"):
        asyncio.run(compare_arms(open_config(config)))
    main(["sac", str(config)])
    measured = metrics(workplace, "sac")
    assert measured["solved_first_quarter"] < 0.5
    assert measured["solved_last_quarter"] > 0.9
    history = measured["history"]
    assert measured["episodes"] == len(history) == 127
    assert measured["env_steps"] == sum(facts["actions"] for facts in history)
    # One update for every step, from the episode on in which a batch of 8 was there.
    assert measured["updates"] == sum(facts["actions"] for facts in history if facts["env_steps"] >= 8)
    assert history[-1]["entropy_played"] < history[0]["entropy_played"]
    assert f"{len(history)} episodes, {measured['env_steps']} env_steps" in capsys.readouterr().out
    main(["sac", str(config)])
    assert "sac is already done with these inputs" in capsys.readouterr().out

    opened = open_config(config)
    asyncio.run(compare_arms(opened))
    first, retries = (facts(opened, arm).trajectories.values() for arm in ("eval/trial 0", "eval/SAC"))
    failed = [attempt for attempt in first if attempt.outcome is Outcome.FAILURE]
    assert len(failed) > 4
    assert len(retries) == len(failed)
    assert all([step.action for step in attempt.steps][-1] == "open" for attempt in retries)
    assert all(attempt.outcome is Outcome.SUCCESS for attempt in retries)
    assert not any(attempt.outcome is Outcome.SUCCESS for attempt in facts(opened, "eval/again").trajectories.values())
    report = (opened.experiment.folder / "eval/report.md").read_text()
    assert "| SAC | none: retry without advice | the model `sac` |" in report
    assert f"| SAC of the actor | `runs/tiny/sac` | {measured['env_steps']} steps | {len(history)} episodes," in report

    with pytest.raises(ConfigError, match=r"8 of 8 evaluation tasks were used to train 'sac' .*, such as 'train/0'"):
        asyncio.run(compare_arms(open_config(config, "eval.split=train")))


@pytest.mark.slow
def test_a_killed_training_resumes_bit_by_bit(tiny_base: Path, workplace: Path) -> None:
    config = write_config(workplace, tiny_base, episodes=24)
    (workplace / "runs").mkdir()
    whole = copy_of_run(workplace)
    kill_at(workplace, "update-000008.pt", "sac", config)
    broken, unbroken = train_in(workplace, "sac", config), train_in(whole, "sac", config)
    assert 8 <= broken["resumed_from_episode"] < 24
    assert unbroken["resumed_from_episode"] == 0
    assert broken["history"] == unbroken["history"]
    assert broken["adapter_sha256"] == unbroken["adapter_sha256"]


def test_an_environment_that_fails_loses_no_finished_episode(tiny_base: Path, workplace: Path) -> None:
    config = write_config(workplace, tiny_base, episodes=6)
    broken = workplace / "painting"
    overrides = [f"environment.broken_file={broken}", "train.checkpoint_steps=100"]
    broken.touch()
    with pytest.raises(InfrastructureFailure, match=r"Episode 1 could not be played.*is being painted"):
        main(["sac", str(config), *overrides])
    assert not list((workplace / "runs/tiny/checkpoints").glob("*/*.pt"))
    broken.unlink()
    main(["sac", str(config), *overrides])
    assert metrics(workplace, "sac")["episodes"] == 6


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["environment.silent=true"], "needs an environment that lists the possible actions"),
        (["actor.kind=react"], r"actor.kind=react does not \(departure 26\): set actor.kind to chooser."),
        (["actor.endpoint.model=sac"], "actor.endpoint.model=sac is the actor that this stage trains"),
        (["actor.endpoint.base_url=http://127.0.0.1:9/v1"], "SAC trains the actor on this machine"),
        (["train.max_length=20"], "A prompt with its longest action has .* tokens, more than train.max_length=20"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    tiny_base: Path, workplace: Path, overrides: list[str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        main(["sac", str(write_config(workplace, tiny_base)), *overrides])
    assert not (workplace / "runs/tiny/sac").exists()


def test_a_missing_start_is_named(tiny_base: Path, workplace: Path) -> None:
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/actor: run `retroformer train actor"):
        main(["sac", str(write_config(workplace, tiny_base)), "actor.endpoint.model=actor"])


@pytest.mark.slow
def test_the_household_actor_is_trained_from_the_adapter_that_the_config_names(
    tiny_base: Path, workplace: Path
) -> None:
    config = write_config(workplace, tiny_base, episodes=4)
    household = {
        "environment": {"name": "alfworld", "source": "generated", "receptacles": 6, "task_types": ["pick"]},
        "actor": {"kind": "household", "choice": "admissible", "endpoint": {"model": "start", "api": "completions"}},
        "loop": {"actions": 5},
        "serve": {"adapters": {"start": str(workplace / "start")}},
    }
    content = yaml.safe_load(config.read_text()) | household
    content["train"]["max_length"] = 512
    config.write_text(yaml.safe_dump(content))
    from tests.train.world import save_adapter

    save_adapter(load(config), workplace / "start")
    main(["sac", str(config)])
    measured = metrics(workplace, "sac")
    assert measured["inputs"]["adapters"].keys() == {"start"}
    assert measured["env_steps"] == 20
    assert all(facts["entropy_played"] > 0 for facts in measured["history"])
    assert len(measured["tasks"]) == 4


def test_a_chooser_of_webshop_is_trained_on_what_can_be_clicked_and_a_search_for_the_request(
    tiny_base: Path, workplace: Path
) -> None:
    config = write_config(workplace, tiny_base, episodes=3)
    content = yaml.safe_load(config.read_text())
    content |= {"environment": {"name": "webshop", "split": "test"}}
    content["environment"]["data"] = str(write_shop(workplace / "data"))
    content |= {"loop": {"actions": 4}, "reflector": {}}
    content["train"]["max_length"] = 2000
    config.write_text(yaml.safe_dump(content))
    main(["sac", str(config)])
    measured = metrics(workplace, "sac")
    assert 6 <= measured["env_steps"] <= 12
    # A search is the only choice on the first page, and the results have several.
    assert all(0 < facts["entropy_played"] < 3 for facts in measured["history"])


@pytest.mark.parametrize("config", ["reflexion-humaneval-python", "reflexion-hotpotqa-react"])
def test_an_environment_of_open_texts_is_refused_by_its_departure(config: str) -> None:
    with pytest.raises(ConfigError, match=r"does not \(departure 26\): no actor of this environment does\."):
        offers_of(load(ROOT / f"configs/paper/{config}.yaml"))
