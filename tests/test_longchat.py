"""The four configs that train LongChat-7b run as shipped on a tiny model of its form, by the commands.

Only the base model's folder, the data, the actor's address and sizes are changed: the 4-bit base, bfloat16, the 16k
context and all hyperparameters are the configs' own.
"""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from retroformer.config.experiment import Experiment
from retroformer.config.file import load_domains
from retroformer.run.provenance import folder_sha256
from tests.support.advised_model import AdvisedModel
from tests.support.data import require_data
from tests.support.endpoint import Endpoint
from tests.support.longchat import save_longchat
from tests.support.runs import ROOT

SIZES = ("collect.tasks=12", "eval.tasks=2", "train.ppo.updates=1", "train.ppo.batch_size=8")
ENOUGH = ("train.weak_reward_model=allow",)
"""A dozen tasks have one held-out pair, and PPO asks for five."""
MADE_GOALS = ("environment.goals=synthetic",)
"""For WebShop: its thousand products have no request for training that people wrote."""
PATIENCE_SECONDS = 900


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def run(folder: Path, command: str, config: Path, words: Sequence[str]) -> None:
    line = [sys.executable, "-m", "retroformer", *command.split(), str(config), *words]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr


def section_of(experiment: Experiment) -> str:
    return f"domains.{experiment.domain}." if experiment.domain else ""


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def bases_of_answers(database: Path) -> set[str]:
    """Return the base models of the endpoints that wrote the advice of a store."""
    with closing(sqlite3.connect(database)) as store:
        records = [str(record) for (record,) in store.execute("select record from condition_records")]
    return {sha256 for record in records for sha256 in re.findall(r'"base_sha256":"(\w+)"', record)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hotpotqa", "alfworld", "webshop", "domains"])
def test_a_config_runs_as_shipped_on_shards_from_collect_to_eval(name: str, tmp_path: Path) -> None:
    config, base = ROOT / "configs" / "paper" / f"{name}.yaml", save_longchat(tmp_path / "longchat")
    sha256, folder = folder_sha256(base), tmp_path / "runs" / name
    words = [*SIZES, *ENOUGH, f"train.base_model={base}", *(MADE_GOALS if name == "webshop" else ())]
    with ExitStack() as stack:
        for experiment in load_domains(config):
            data = require_data(experiment.environment.name)
            words.append(f"{section_of(experiment)}environment.data={data}")
        for experiment in load_domains(config, words):
            server = stack.enter_context(Endpoint(AdvisedModel(experiment)))
            words.append(f"{section_of(experiment)}actor.endpoint.base_url={server.url}")
        run(tmp_path, "collect", config, words)
        for stage in ("sft", "reward", "ppo"):
            run(tmp_path, f"train {stage}", config, words)
            inputs = read(folder / stage / "metrics.json")["inputs"]
            assert (inputs["base"], inputs["max_length"], inputs["quantization"]) == (sha256, 16384, "nf4")
        run(tmp_path, "eval", config, words)
    assert bases_of_answers(folder / "experience.db") == {sha256}
    # One step of so small a rate is lost in bfloat16, and a merge that loses it is refused.
    run(tmp_path, "train merge", config, ["ppo", *words, "serve.dtype=float32"])
    assert read(folder / "ppo-merged" / "merge.json")["base_sha256"] == sha256
    assert list((folder / "ppo-merged").glob("*.safetensors"))
