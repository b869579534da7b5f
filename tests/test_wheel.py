"""Tests of the wheel: its content, and the console command run from it, without a checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from retroformer.method.records import Outcome
from retroformer.run.arm_names import eval_arm
from retroformer.run.store import Store
from tests.support.endpoint import Endpoint
from tests.support.guessing import addresses, build_wheel, halve, save_project
from tests.support.runs import ROOT
from tests.train.world import save_tiny_model

TRAINING = (
    "train.quantization=none",
    "train.dtype=float32",
    "train.report_to=none",
    "train.batch_size=4",
    "train.micro_batch_tokens=200",
    "reflector.max_new_tokens=8",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


class Installed(NamedTuple):
    """Virtual environment with the wheel and an environment package, and models that play it."""

    folder: Path
    python: Path
    environment: dict[str, str]
    models: Endpoint

    def command(self, *words: str) -> list[str]:
        """Return the command `retroformer WORDS` as a shell runs it."""
        return [str(self.python.with_name("retroformer")), *words]

    def run(self, *words: str) -> str:
        """Return the output of `retroformer WORDS`."""
        done = self.ended(self.command(*words))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ended(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=1800, check=False
        )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", symlinks=True, with_pip=False)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    save_project(folder, site)
    save_tiny_model(folder / "tiny")
    # The libraries of this environment, without the additions of its .pth files, such as an editable checkout.
    libraries = f"{site}{os.pathsep}{sysconfig.get_path('purelib')}"
    environment = os.environ | {"PYTHONPATH": libraries, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with Endpoint(halve) as models:
        yield Installed(folder, python, environment | {"no_proxy": "127.0.0.1"}, models)


def test_the_wheel_holds_only_retroformer(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"retroformer"}
    for folder in ("method/packs", "models/adapters", "collect", "train", "serve", "eval", "configs", "configs/paper"):
        assert any(name.startswith(f"retroformer/{folder}/") for name in names), folder
    assert "retroformer/py.typed" in names


def test_the_console_command_runs_from_the_wheel_and_not_from_a_checkout(installed: Installed) -> None:
    assert installed.run("--help").startswith("Usage: retroformer [--version] COMMAND")
    assert installed.run("collect", "--help").startswith("Usage: retroformer collect COMMAND")
    module = installed.ended([str(installed.python), "-m", "retroformer.collect", "--help"])
    assert module.stdout.startswith("Usage: python -m retroformer.collect COMMAND"), module.stderr
    code = "import importlib.util, retroformer; print(importlib.util.find_spec('collect'), retroformer.__file__)"
    spec, path = installed.ended([str(installed.python), "-c", code]).stdout.split()
    assert spec == "None"
    assert Path(path).is_relative_to(installed.folder)


def test_the_error_for_a_missing_config_names_a_close_one_of_the_package(installed: Installed) -> None:
    refused = installed.ended(installed.command("collect", "demo.yaml"))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    named = Path(refused.stderr.partition("did you mean ")[2].removesuffix("?\n"))
    assert named.read_text() == (ROOT / "configs/demo.yaml").read_text()


@pytest.mark.slow
def test_all_stages_run_from_the_wheel(installed: Installed) -> None:
    config = ("guessing.yaml", "train.base_model=tiny", *TRAINING)
    models = addresses(installed.models)
    collected = installed.run("collect", *config, "collect.tasks=8", "collect.candidates=1", "loop.trials=2", *models)
    assert collected
    assert installed.run("train", "sft", *config).startswith("trained sft: runs/guessing/sft (")
    _ask_endpoint(installed, config)
    # The reflector has no address, so the stage starts its own server, also from the wheel.
    arms = "eval.arms={no reflection: {kind: none}, trained: {kind: model, model: sft}}"
    assert "report.html" in installed.run("eval", *config, models[0], "eval.tasks=2", "loop.trials=2", arms)
    assert "trained" in (installed.folder / "runs" / "guessing" / "eval" / "report.md").read_text()


def _ask_endpoint(installed: Installed, config: tuple[str, ...]) -> None:
    """Serve the trained adapter and check that it is listed under its name."""
    with subprocess.Popen(
        installed.command("serve", *config, "serve.port=0", "--until-input-closes"),
        cwd=installed.folder,
        env=installed.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("Serving "), server.stderr and server.stderr.read()
        models = httpx.get(f"{line.split(' at ')[1].strip()}/models", trust_env=False).json()["data"]
        assert "sft" in {model["id"] for model in models}
        server.stdin.close()
        assert server.wait(60) == 0


@pytest.mark.slow  # A real model collects, is trained and is evaluated.
def test_the_first_experiment_improves_its_agent_from_the_wheel(installed: Installed) -> None:
    installed.run("init", "first")
    first = installed._replace(folder=installed.folder / "first")
    assert "32 of 32 played, 0 solved at trial 0" in first.run("collect", "agent.yaml")
    assert first.run("train", "sft", "agent.yaml").startswith("trained sft: runs/agent/sft (")
    _ask_endpoint(first, ("agent.yaml",))
    assert "report.html" in first.run("eval", "agent.yaml")
    with closing(Store(f"sqlite:///{first.folder}/runs/agent/experience.db", "agent")) as store:
        unadvised, base, trained = (
            sum(attempt.outcome is Outcome.SUCCESS for _, attempt in store.stream_trajectories(eval_arm(arm)))
            for arm in ("no advice", "base model", "trained")
        )
    assert unadvised == 0 < trained
    assert base < trained
