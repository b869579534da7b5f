import json
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.errors import ConfigError, MissingInput, ServiceError
from serve.endpoint import check_host
from serve.served_names import served_names
from serve.supervisor import Service, supervise


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folder of the run `try`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("run: try\nenvironment: {name: alfworld}\n")
    return Path("runs/try")


def experiment(*overrides: str) -> Experiment:
    return load(Path("config.yaml"), overrides)


def finish(folder: Path) -> None:
    """Write the files of a finished training stage to `folder`."""
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"weights")


def test_a_run_without_adapters_serves_its_base_alone(run: Path) -> None:
    served = served_names(experiment())
    assert (served.adapters, served.aliases, served.best_of) == ({}, {}, {})


def test_the_reflector_is_the_last_finished_stage_and_the_reward_model_is_not_served(run: Path) -> None:
    for stage in ("warm", "sft", "reward"):
        finish(run / stage)
    (run / "ppo").mkdir()  # Started, not finished.
    served = served_names(experiment())
    assert served.adapters == {"warm": run / "warm", "sft": run / "sft"}
    assert served.aliases == {"reflector": "sft"}


def test_adapters_of_later_rounds_are_served_beside_the_first_and_the_last_one_is_the_reflector(run: Path) -> None:
    for stage in ("warm", "sft", "ppo", "sft-2", "ppo-2", "sft-10", "reward-10", "ppo_old"):
        finish(run / stage)
    served = served_names(experiment())
    assert list(served.adapters) == ["warm", "sft", "ppo", "sft-2", "ppo-2", "sft-10"]
    assert served.aliases == {"reflector": "sft-10"}


def test_variants_are_served_and_are_the_reflector_only_where_nothing_else_is(run: Path) -> None:
    for stage in ("warm", "sft-rated", "sft-rated-2", "reward-rated"):
        finish(run / stage)
    (run / ".sft-unfinished").mkdir()
    served = served_names(experiment())
    assert list(served.adapters) == ["sft-rated", "sft-rated-2", "warm"]
    assert served.aliases == {"reflector": "warm"}
    (run / "warm").rename(run / "sft-2")
    assert served_names(experiment()).aliases == {"reflector": "sft-2"}
    (run / "sft-2").rename(run / "dpo-near")
    assert served_names(experiment()).aliases == {"reflector": "sft-rated-2"}
    (run / "sft-rated-2").rename(run / "sft")
    assert served_names(experiment()).aliases == {"reflector": "sft"}
    of_config = experiment("train.variants={sft: rated}")
    assert served_names(of_config).aliases == {"reflector": "sft-rated"}


def test_an_adapter_named_reflector_is_the_reflector(run: Path, tmp_path: Path) -> None:
    finish(run / "sft")
    finish(tmp_path / "mine")
    served = served_names(experiment(f"serve.adapters={{reflector: {tmp_path / 'mine'}}}"))
    assert served.adapters["reflector"] == tmp_path / "mine"
    assert served.aliases == {}


def test_the_error_for_a_missing_folder_names_it(run: Path) -> None:
    with pytest.raises(MissingInput, match=r"No adapter 'actor' in 'nowhere': expected a folder with adapter_model"):
        served_names(experiment("serve.adapters={actor: nowhere}"))


def test_best_of_n_is_served_once_the_adapter_and_its_reward_model_exist(run: Path) -> None:
    arms = "eval.arms={a: {kind: model, model: [ppo+best4, sft+best8@0123456789ab]}, b: {kind: none}}"
    overrides = arms, "reflector.endpoint.model=reflector+best2", "serve.best_of=[base+best64, sft+best8]"
    finish(run / "sft")
    assert served_names(experiment(*overrides)).best_of == {}
    finish(run / "reward")
    served = served_names(experiment(*overrides)).best_of
    assert served == dict.fromkeys(("base+best64", "sft+best8", "reflector+best2"), run / "reward")


def test_the_reward_model_is_the_one_beside_its_adapter(run: Path, tmp_path: Path) -> None:
    for folder in (run / "sft", run / "sft-2", run / "reward", run / "reward-2", tmp_path / "other", run / "ppo-3"):
        finish(folder)
    for stage in ("ppo-near", "ppo-far", "reward-near"):
        finish(run / stage)
    for stage in ("ppo", "ppo-near", "reward"):
        finish(tmp_path / "seed" / stage)
    seed = tmp_path / "seed"
    named = f"serve.adapters={{mine: {seed}/ppo, their_near: {seed}/ppo-near, theirs: {tmp_path}/other}}"
    asked = ("sft-2", "ppo-3", "mine", "their_near", "theirs", "ppo-near", "ppo-far")
    overrides = f"serve.best_of=[{', '.join(f'{name}+best2' for name in asked)}]"
    served = served_names(experiment(named, overrides)).best_of
    assert [str(folder.relative_to(folder.parents[1])) for folder in served.values()] == [
        "try/reward-2",
        "try/reward",
        "seed/reward",
        "seed/reward",
        "try/reward",
        "try/reward-near",
        "try/reward",
    ]


def test_the_reward_model_is_the_one_that_the_metrics_of_its_adapter_name(run: Path) -> None:
    for stage in ("ppo-near", "reward", "reward-near", "reward-strict"):
        finish(run / stage)
        (run / stage / "metrics.json").write_text(json.dumps({"adapter_sha256": f"hash of {stage}"}))

    def judge_after(reward: str) -> str:
        trained = {"adapters": {"sft": "hash of sft", "reward": reward}}
        (run / "ppo-near" / "metrics.json").write_text(json.dumps({"inputs": trained}))
        served = served_names(experiment("serve.best_of=['ppo-near+best2']"))
        return served.best_of["ppo-near+best2"].name

    assert judge_after("hash of reward-strict") == "reward-strict"
    assert judge_after("hash of reward") == "reward"
    assert judge_after("hash of one that is gone") == "reward-near"


def test_an_adapter_is_served_with_the_template_settings_of_its_training(run: Path) -> None:
    finish(run / "sft")
    facts = {"stage": "sft", "inputs": {"chat_template_kwargs": {"enable_thinking": False}}}
    (run / "sft/metrics.json").write_text(json.dumps(facts))
    same = experiment("train.chat_template_kwargs={enable_thinking: false}")
    assert list(served_names(same).adapters) == ["sft"]
    refusal = (
        r"'sft' in 'runs/try/sft' was trained with train\.chat_template_kwargs=\{'enable_thinking': False\}, and this"
    )
    with pytest.raises(ConfigError, match=refusal):
        served_names(experiment())
    (run / "sft/metrics.json").write_text(json.dumps({"stage": "sft"}))
    with pytest.raises(ConfigError, match=r"was trained with train\.chat_template_kwargs=\{\}, and this"):
        served_names(same)


@pytest.mark.parametrize("name", ["sft", "sft+best1", "sft+best65", "+best8", "sft+best8+best8"])
def test_other_names_are_not_best_of_n_names(run: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"serve.best_of.0"):
        experiment(f"serve.best_of=['{name}']")


@pytest.mark.parametrize("name", ["base", "sft@0123", "sft+best8"])
def test_reserved_names_are_refused(run: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="take another word"):
        served_names(experiment(f"serve.adapters={{{name}: nowhere}}"))


def test_only_a_host_that_others_can_reach_causes_a_warning(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for host in ("127.0.0.1", "::1", "localhost"):
            check_host(experiment(f"serve.host={host}").serve)
        assert caplog.text == ""
        check_host(experiment("serve.host=0.0.0.0").serve)
    assert "OPENS THIS SERVER TO THE NETWORK" in caplog.text


def test_remote_clients_may_load_adapters_only_with_a_key(run: Path) -> None:
    taking = "serve.hand_over=true"
    for allowed in ((taking,), (taking, "serve.host=::1"), (taking, "serve.host=0.0.0.0", "serve.api_key_env=KEYS")):
        check_host(experiment(*allowed).serve)
    with pytest.raises(ConfigError, match=r"serve.host=0.0.0.0 .* set serve.api_key_env"):
        check_host(experiment(taking, "serve.host=0.0.0.0").serve)
    behind = ("serve.controller=http://127.0.0.1:21001", "serve.host=0.0.0.0")
    with pytest.raises(ConfigError, match=r"routes without a key at serve.host=0.0.0.0"):
        check_host(experiment(*behind, "serve.api_key_env=KEYS").serve)


@pytest.mark.slow
def test_a_service_that_keeps_dying_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    service = Service("clock", ["no_such_module_anywhere"], tmp_path / "clock.log", dict(os.environ), lambda _: True)
    service.start()
    with pytest.raises(ServiceError, match=r"The clock died 5 times in a row: .*no_such_module_anywhere.*clock\.log"):
        supervise_for(service, seconds=90)


@pytest.mark.parametrize(
    ("deed", "ending"),
    [("sys.exit(3)", "exit code 3"), ("os.kill(os.getpid(), 9)", "killed by SIGKILL")],
)
def test_the_death_of_a_service_is_logged_with_its_exit_code_or_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, deed: str, ending: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    (tmp_path / "mortal.py").write_text(f"import os, sys\nprint('Farewell.', flush=True)\n{deed}\n")
    service = Service("clock", ["mortal"], tmp_path / "clock.log", dict(os.environ), lambda _: False)
    with pytest.raises(ServiceError) as caught:
        supervise([service], lambda: None, threading.Event())
    log = tmp_path / "clock.log"
    assert str(caught.value) == f"The clock stopped while starting: Farewell. ({ending}; log: {log})"
    service.start()
    while service.alive:
        time.sleep(0.01)
    with caplog.at_level(logging.WARNING):
        service.restart_if_needed()
    service.stop(time.monotonic() + 10)
    assert f"The clock died and is started again: Farewell. ({ending}; log: {log})" in caplog.text


def supervise_for(service: Service, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        service.restart_if_needed()
        time.sleep(0.05)
