"""SIGTERM ends a stage after the step in progress, saves it, and loses nothing."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import becomes_true
from tests.train.killed import copy_of_run, require_alike, train_in
from tests.train.test_processes import ENVIRONMENT, LAUNCHER
from tests.train.world import collect, config_file, metrics
from train.__main__ import main
from train.loop import Stopped

QUICK: dict[str, Any] = {"learning_rate": 3e-3, "epochs": 6}
SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("sft", "reward"), QUICK),
    "ppo": {**QUICK, "batch_size": 4, "epochs": 2, "updates": 4},
    "checkpoint_steps": 1000,
}


def asked_to_stop() -> threading.Thread:
    """Send SIGTERM to this process as soon as something awaits it."""
    before = signal.getsignal(signal.SIGTERM)

    def send() -> None:
        while signal.getsignal(signal.SIGTERM) == before:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.slow
def test_stages_end_after_a_step_and_go_on_from_it(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base, **SETTINGS)
    collect(config)
    for stage, unit in (("sft", "step"), ("reward", "step"), ("ppo", "update")):
        unbroken = train_in(copy_of_run(workplace, f"before-{stage}"), stage, config)
        sender = asked_to_stop()
        with pytest.raises(Stopped, match=rf"after {unit} 1 of \d+ of {stage}, which is saved: run the same"):
            main([stage, str(config)])
        sender.join()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert not (workplace / "runs/tiny" / stage).exists()
        main([stage, str(config)])
        resumed = metrics(workplace, stage)
        require_alike(resumed, unbroken, 1)
        assert resumed[f"resumed_from_{unit}"] == 1


@pytest.mark.slow
def test_all_processes_of_a_launcher_end_after_the_same_step(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base, **SETTINGS | {"sft": {**QUICK, "epochs": 200}, "checkpoint_steps": 7})
    collect(config)
    words = [*LAUNCHER, "--log-dir", str(workplace / "logs"), "--nproc-per-node", "2", "-m", "train", "sft"]
    process = subprocess.Popen(
        [sys.executable, *words, str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    checkpoints = workplace / "runs/tiny/checkpoints"
    assert becomes_true(lambda: any(checkpoints.glob("sft-*/checkpoint-*/complete")))
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    (step,) = re.findall(r"Stopped by SIGTERM after step (\d+) of \d+ of sft", said)
    assert next(checkpoints.glob(f"sft-*/checkpoint-{step}/complete"))
