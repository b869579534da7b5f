"""Stages in two processes, as a launcher starts them, against the same stages in one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.world import collect, page, trained
from train import processes

REPOSITORY = Path(__file__).parents[2]
# Without cards, so that a machine with one of them has two processes as well.
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(REPOSITORY),
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}
LAUNCHER = ("-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
ROUNDING = 1e-5
"""Of losses of order 1: fp32 has 7 digits, and gradients are added up in another order before each step."""

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


def run(folder: Path, number: int | None, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of train, in so many launched processes, or without a launcher."""
    # Where no folder for its logs is named, the launcher makes one in the temporary folder and leaves it there.
    logs = str(folder / "launcher")
    launcher = () if number is None else (*LAUNCHER, "--log-dir", logs, "--nproc-per-node", str(number))
    command = [sys.executable, *launcher, "-m", "train", *words]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


def both(folder: Path, alone: int | None, stage: str, made: Path) -> list[dict[str, Any]]:
    """What a stage tells of itself in one process (without a launcher, or with one), and in two."""
    other = folder / "other"
    shutil.copytree(folder / "runs", other / "runs")
    told = []
    for place, number in ((folder, alone), (other, 2)):
        done = run(place, number, stage, str(made), "train.weak_reward_model=allow")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"trained {stage}: runs/tiny/{stage} (") == 1
        assert done.stderr.count(f"train {stage}  ") == 1, "two processes show their progress"
        told.append(json.loads((place / "runs/tiny" / stage / "metrics.json").read_text()))
        assert (place / "runs/tiny" / stage / "adapter_model.safetensors").is_file()
    assert [one["processes"] for one in told] == [1, 2]
    return told


@pytest.mark.parametrize("stage", ["sft", "reward", "dpo"])
def test_two_processes_learn_what_one_learns_from_the_same_batches(
    tiny_base: Path, workplace: Path, stage: str
) -> None:
    # Eight micro-batches in a step, and rows that do not fill the last one: 36 of sft, 30 of reward and dpo.
    many = {"learning_rate": 3e-3, "batch_size": 8, "micro_batch_size": 1, "epochs": 3}
    made = trained(workplace, tiny_base, sft=many, reward=many, dpo=many)
    one, two = both(workplace, None, stage, made)
    assert one["fingerprint"] == two["fingerprint"]
    assert one["steps"] == two["steps"] == {"sft": 5, "reward": 4, "dpo": 4}[stage]
    assert two["losses"] == pytest.approx(one["losses"], rel=ROUNDING)
    assert one["losses"][-1] < 0.95 * one["losses"][0], "nothing was learned that two processes could learn otherwise"


@pytest.mark.parametrize("stage", ["ppo", "grpo"])
def test_two_processes_improve_the_policy_as_one_does(tiny_base: Path, workplace: Path, stage: str) -> None:
    quick = {"learning_rate": 3e-3, "batch_size": 8, "micro_batch_size": 2, "updates": 3, "epochs": 2}
    sizes: Any = {"ppo": quick, "grpo": quick | {"group": 4}}
    made = trained(workplace, tiny_base, **sizes)
    shutil.move(workplace / "runs/tiny/sft", workplace / "sft")
    trained(workplace, tiny_base, "reward", **sizes)
    shutil.move(workplace / "sft", workplace / "runs/tiny/sft")
    measured = workplace / "runs/tiny/reward/metrics.json"
    scale = {"train_score_mean": 0.0, "train_score_deviation": 1.0, "held_out_pairs": 0}
    measured.write_text(json.dumps(json.loads(measured.read_text()) | scale))
    # A launcher gives each micro-batch random numbers of its own, for one process as for two.
    one, two = both(workplace, 1, stage, made)
    assert one["updates"] == two["updates"] == 3
    for alone, shared in zip(one["history"], two["history"], strict=True):
        assert alone["gradient_norm"] > 0
        assert shared == pytest.approx(alone, rel=1e-4, abs=ROUNDING)


def test_what_cannot_be_shared_is_refused_once_and_ends_every_process(tiny_base: Path, workplace: Path) -> None:
    live = {"learning_rate": 3e-3, "batch_size": 4, "micro_batch_size": 2, "group": 2, "reward": "live"}
    made = page(workplace, tiny_base, grpo=live)
    collect(made)
    for words, sentence in (
        (
            ("grpo", str(made)),
            "`train grpo with train.grpo.reward=live` runs in one process, and a launcher has started 2",
        ),
        (("sft", str(made), "train.sft.micro_batch_size=4"), "2 processes cannot share train.sft.batch_size=4 evenly"),
    ):
        refused = run(workplace, 2, *words)
        assert refused.returncode != 0
        assert refused.stderr.count(sentence) == 1


def test_without_a_launcher_work_is_done_in_its_order_and_nothing_is_shared() -> None:
    assert (processes.count(), processes.is_main(), processes.screen()) == (1, True, None)
    assert processes.each(range(3), lambda number: number * number) == [0, 1, 4]
    assert processes.total(2.5) == 2.5
