"""Faults of the other stages: killed evaluations, trainings and servers, and adapters that are not what they were."""

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import yaml

from retroformer.run.provenance import folder_sha256
from retroformer.run.stage_metrics import METRICS
from tests.faults.world import PATIENCE_SECONDS, SLOTS, Outcome, Process, World, kill, still_runs_when
from tests.serve.running import make_adapter
from tests.support.killing import after_cpu_seconds, cpu_seconds, finish, start_and_kill
from tests.support.processes import descendants
from tests.support.runs import HOUSEHOLD
from tests.train.world import collect, config_file, metrics, save_tiny_model

_PROBES = 4
"""Most calls with which a starting evaluation asks whether its models answer."""


def killed_evaluations(world: World, count: int) -> Outcome:
    """Kill an evaluation with SIGKILL after a random part of its work."""
    return world.kill_and_finish(count, "eval", longest=5.0, wasted=SLOTS + _PROBES)


def killed_trainings(world: World, count: int) -> Outcome:
    """Kill SFT, the reward model and PPO at random moments; they must end with the weights of unbroken runs."""
    faults, violations = 0, list[str]()
    many = {"learning_rate": 1e-3, "epochs": 20}
    ppo = {**many, "batch_size": 4, "epochs": 2, "updates": 15}
    whole = world.folder / "whole"
    whole.mkdir()
    config = config_file(whole, save_tiny_model(world.folder / "tiny"), sft=many, reward=many, ppo=ppo)
    with contextlib.chdir(whole):
        collect(config)
    os.environ["OMP_NUM_THREADS"] = "1"  # Resumed runs are compared bit by bit.
    stages = ("sft", "reward", "ppo")
    for number, stage in enumerate(stages):
        before = world.folder / f"before-{stage}"
        shutil.copytree(whole, before)
        seconds = _cpu_seconds_of(whole, stage, config)
        killed, wanted = 0, count * (number + 1) // len(stages) - count * number // len(stages)
        while killed < wanted:
            folder = world.folder / f"{stage}-{killed}"
            shutil.copytree(before, folder)
            for _ in range(min(3, wanted - killed)):
                moment = after_cpu_seconds(world.chance.uniform(0.0, seconds))
                if start_and_kill(folder, "train", [stage, str(config)], moment) is not None:
                    break
                killed += 1
            finish(folder, "train", [stage, str(config)])
            if metrics(folder, stage)["adapter_sha256"] != metrics(whole, stage)["adapter_sha256"]:
                violations.append(f"{stage} was resumed to other weights")
            shutil.rmtree(folder)
        faults += killed
    return Outcome(faults, violations)


def _cpu_seconds_of(folder: Path, stage: str, config: Path) -> float:
    """Run a stage to its end, and return the CPU time that it took."""
    spent = 0.0

    def look(pid: int) -> bool:
        nonlocal spent
        spent = max(spent, cpu_seconds(pid))
        return False

    said = start_and_kill(folder, "train", [stage, str(config)], look)
    assert said is not None
    assert f"trained {stage}" in said, said
    return spent


def killed_servers(world: World, count: int) -> Outcome:
    """Kill a process of the server that an evaluation has started: the supervisor, its worker, or its API server."""
    served = _served(world)

    def hit(run: str, process: Process) -> int:
        time.sleep(served.chance.uniform(0.5, 4.0))
        serving = [pid for pid in descendants(process.pid) if "serve" in _command_of(pid)]
        if not serving:
            return 0
        with suppress(ProcessLookupError):
            os.kill(served.chance.choice(serving), signal.SIGKILL)
            return 1
        return 0

    return served.disturb(count, hit, most=3, spare=lambda made: 0, stage="eval")


def changed_adapters(world: World, count: int) -> Outcome:
    """Truncate the served adapter, flip a bit in it, or swap it for another, in the middle of an evaluation.

    The evaluation must refuse to go on, and must end like the unbroken one when the adapter is what it was.
    """
    served, violations = _served(world), list[str]()
    adapter = served.folder / "adapter/adapter_model.safetensors"
    another = make_adapter(served.folder / "tiny", served.folder / "another", seed=2)
    whole = adapter.read_bytes()
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: whole[: served.chance.randrange(len(whole))],
        lambda: _with_a_flipped_bit(whole, served.chance),
        lambda: (another / adapter.name).read_bytes(),
    )
    made = 0
    while made < count:
        run, wanted = served.new_run("eval"), served.chance.randint(1, 8)
        process = served.start(run, stage="eval")
        # Without advice it is bound to no adapter yet.
        still_runs_when(process, lambda run=run, wanted=wanted: _advice(served, run) >= wanted)
        kill(process)
        if process.returncode == 0:
            continue
        before = _advice(served, run)
        adapter.write_bytes(ways[made % len(ways)]())
        made += 1
        said, _ = (process := served.start(run, stage="eval")).communicate(timeout=PATIENCE_SECONDS)
        adapter.write_bytes(whole)
        if "Traceback" in said:
            violations.append(f"{run} ended in a traceback: {said[-300:]}")
        elif process.returncode == 0 or _advice(served, run) != before:
            violations.append(f"{run} went on with a changed adapter: {said[-300:]}")
        violations += served.finish(run, stage="eval") + served.judge(run, 0, stage="eval")
    return Outcome(made, violations)


def _served(world: World) -> World:
    """Return a world whose evaluations serve a tiny reflector on this machine, to a rule-based actor."""
    folder = world.folder / "served"
    folder.mkdir()
    base = save_tiny_model(folder / "tiny")
    adapter = make_adapter(base, folder / "adapter", seed=1)
    (adapter / METRICS).write_text(json.dumps({"adapter_sha256": folder_sha256(adapter)}))  # As training writes it.
    arms = {"no reflection": {"kind": "none"}, "trained": {"kind": "model", "model": "trained"}}
    config = HOUSEHOLD | {
        "reflector": {"view": "compact", "max_new_tokens": 8, "endpoint": {"model": "trained"}},
        "train": {"base_model": str(base), "quantization": "none", "dtype": "float32", "max_length": 512},
        "serve": {"port": 0, "dtype": "float32", "adapters": {"trained": str(folder / "adapter")}},
        "eval": {"split": "held_out", "tasks": 12, "arms": arms},
    }
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(config))
    return World(folder, world.server, world.chance, path)


def _advice(served: World, run: str) -> int:
    if not served.database(run).exists():
        return 0
    with served.store(run) as store:
        return store.arm_counts()["eval/trained"].advice


def _with_a_flipped_bit(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def _command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
