"""Peak memory and seconds per update of our PPO and of TRL's last PPOTrainer (1.12), in one run.

    python benchmarks/ppo.py [--batch 8] [--micro-batch 4] [--draw 4] [--prompt 128] [--response 16] [--epochs 4]
                             [--updates 3] [--rounds 1] [--trl-python PYTHON] [--only ours trl lean]

Both train the embedded model on a CPU with one thread. Each side of each round is a fresh process, so that peaks
do not mix. TRL 1.12 gets its own environment in the cache, created on the first run; no later TRL has PPO. At the sizes
above TRL's process takes about 5 GiB; memory grows with micro-batch times length.

Equal on both sides: the versions of all other libraries; the base (`train.base.load_base`: NF4 with double
quantisation, compute in bfloat16, plain attention, and the guard for 4-bit gradients on CPUs); the adapters of policy,
reference and reward model, in fp32; prompts, all of one length, so there is no padding; responses, none of which ends
before the limit (sampled tokens are counted and compared); batch, micro-batch, one optimiser step per pass over the
batch; all loss weights. Nothing is checkpointed, logged to files or loaded by workers.

The designs of PPO differ. Ours has one base for all roles, a value head on the policy's trunk, logits of response
tokens only, and a separate pass for old log-probabilities. TRL's has two more models, for values and for scores, each
with its own base; it trains the value model's adapter beside the policy's, computes logits of every position, and
keeps those that responses were sampled from; and it computes adapters in fp32, since it enables no autocast
(ACCELERATE_MIXED_PRECISION=bf16 in the environment does). It is set up in two ways:

trl     as TRL intends it for adapters (`model_adapter_name`, `ref_adapter_name`), with its leanest settings: rollouts
        in micro-batches, no cache in training. Score heads get fp32 input; without it TRL fails.
lean    the best a user could do on top of TRL: value and reward model share the policy's frozen weights, and the
        value model trains only its head, so no gradient goes through its trunk. This is a weaker critic.

seconds    CPU time of the process (user and system) between the ends of updates, so that other work on the machine
           has little effect; and wall time. Medians over all updates of all rounds.
tensors    peak bytes of live tensors in an update of two epochs, counted in one more process that is not timed
process    peak resident memory of a timed process, including libraries and loading
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from retroformer.experiment.config import Experiment
from retroformer.experiment.file import load
from retroformer.files.cache import cache_folder
from retroformer.models.embedded import base_model_folder

ROOT = Path(__file__).parents[1]
TRL = "trl==1.12.0"
CONFIG_FILE = "config.yaml"
NAMES = ("ours", "trl", "lean")
GIB = 1024**3
AIM_MEMORY, AIM_SPEED = 0.5, 2.0


class Figures(NamedTuple):
    """Measurements of one process."""

    cpu_seconds: list[float]
    """CPU seconds of each update."""
    wall_seconds: list[float]
    resident_bytes: int
    tensor_bytes: int
    """Peak bytes of live tensors; 0 if not counted."""
    tokens_drawn: int


class Laps:
    """CPU and wall seconds between calls."""

    def __init__(self) -> None:
        self.cpu_seconds: list[float] = []
        self.wall_seconds: list[float] = []
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def __call__(self) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        self.cpu_seconds.append(cpu - self._cpu)
        self.wall_seconds.append(wall - self._wall)
        self._cpu, self._wall = cpu, wall


def measure(name: str, folder: Path, *, count_tensors: bool) -> Figures:
    """Measure one side in this process. Counting tensors slows it down, so its seconds are then meaningless."""
    from benchmarks.ppo_sides import SIDES
    from train.plan.live_bytes import LiveBytes, tensors_of

    experiment, drawn = load(folder / CONFIG_FILE), list[int]()
    if count_tensors:
        # The first pass creates the optimiser's state; the second has it in memory from the start.
        once = experiment.train.ppo.model_copy(update={"updates": 1, "epochs": 2})
        experiment = experiment.model_copy(update={"train": experiment.train.model_copy(update={"ppo": once})})
    ready = SIDES[name](experiment, folder)

    def count_drawn(_: Any, __: Any, read: Any) -> None:
        # Rollouts compute logits of the next token only, training of more tokens.
        if read.logits.shape[1] == 1:
            drawn.append(len(read.logits))

    ready.language_model.register_forward_hook(count_drawn)
    model_tensors = (tensor for model in ready.models for tensor in tensors_of(model))
    with LiveBytes(model_tensors) if count_tensors else nullcontext() as live:
        laps = Laps()
        ready.train(laps)
    return Figures(laps.cpu_seconds, laps.wall_seconds, _highest_resident(), live.peak if live else 0, sum(drawn))


def _highest_resident() -> int:
    """Return peak resident bytes, from /proc: `ru_maxrss` starts at the value of the parent process."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def in_fresh_process(name: str, python: Path, folder: Path, *, count_tensors: bool = False) -> Figures:
    """Return the figures of one side, measured in a fresh process. Exits if the process fails."""
    command = [str(python), __file__, "--side", name, "--folder", str(folder)]
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = os.environ | settings | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command += ["--count-tensors"] if count_tensors else []
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    return Figures(*json.loads(done.stdout.rstrip().rpartition("\n")[2]))


def prepare(folder: Path, arguments: argparse.Namespace) -> Experiment:
    """Write the config with all sizes, the adapters, and random prompts: costs do not depend on the words."""
    import torch

    from benchmarks.ppo_sides import PROMPTS, REWARD, SFT
    from train.plan.rehearsal import fresh_adapter
    from train.plan.shape import read_config

    base = base_model_folder(arguments.base_model)
    ppo = {"learning_rate": 1.4e-5, "epochs": arguments.epochs, "updates": arguments.updates}
    ppo |= {"batch_size": arguments.batch, "micro_batch_size": arguments.micro_batch}
    ppo |= {"draw_batch_size": arguments.draw}
    config = {
        "run": "benchmark",
        "environment": {"name": "alfworld", "source": "generated"},
        "reflector": {"max_new_tokens": arguments.response},
        "train": {"base_model": str(base), "report_to": "none", "ppo": ppo},
    }
    (folder / CONFIG_FILE).write_text(yaml.safe_dump(config))
    experiment = load(folder / CONFIG_FILE)
    torch.manual_seed(experiment.seed)
    for name in (SFT, REWARD):
        fresh_adapter(experiment, folder / name, scores=name == REWARD)
    words = read_config(str(base)).vocab_size
    prompts = torch.randint(3, words, (arguments.batch * arguments.updates, arguments.prompt))
    (folder / PROMPTS).write_text(json.dumps(prompts.tolist()))
    return experiment


def trl_environment() -> Path:
    """Return the Python of an environment with TRL 1.12 that takes all else from ours; created if missing."""
    folder = cache_folder() / TRL.replace("==", "-")
    python, finished = folder / "bin" / "python", folder / "finished"
    if not finished.exists():
        print(f"Making TRL's environment in {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", TRL]
        subprocess.run(pip, check=True)
        # Its own packages take precedence over those of the folder in the .pth file.
        packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        (Path(packages) / "ours.pth").write_text(sysconfig.get_path("purelib"))
        finished.touch()
    return python


class Summary(NamedTuple):
    """Medians of one side over all rounds."""

    cpu_seconds: float
    wall_seconds: float
    tensor_bytes: int
    resident_bytes: float


def summarise(rounds: Sequence[Figures], counted: Figures) -> Summary:
    cpu = statistics.median(second for figures in rounds for second in figures.cpu_seconds)
    wall = statistics.median(second for figures in rounds for second in figures.wall_seconds)
    return Summary(cpu, wall, counted.tensor_bytes, statistics.median(figures.resident_bytes for figures in rounds))


def report(sides: Mapping[str, Summary]) -> None:
    print(f"{'':6}{'CPU-s/update':>14}{'wall s':>10}{'tensors GiB':>14}{'process GiB':>14}")
    for name, summary in sides.items():
        memory = f"{summary.tensor_bytes / GIB:14.2f}{summary.resident_bytes / GIB:14.2f}"
        print(f"{name:6}{summary.cpu_seconds:14.2f}{summary.wall_seconds:10.1f}{memory}")
    for name, other in sides.items():
        mine = sides.get("ours")
        if mine and name != "ours":
            tensors, process = (ours / theirs for ours, theirs in zip(mine[2:], other[2:], strict=True))
            cpu, wall = (theirs / ours for ours, theirs in zip(mine[:2], other[:2], strict=True))
            memory = f"peak memory {tensors:.2f} of tensors, {process:.2f} of the process"
            speed = f"updates a second {cpu:.2f} by CPU time, {wall:.2f} by the clock"
            print(f"ours / {name}: {memory} (aim: at most {AIM_MEMORY})")
            print(f"ours / {name}: {speed} (aim: at least {AIM_SPEED})")


def compare(chosen: argparse.Namespace) -> None:
    """Print the figures of each process as it ends, then the table and the ratios."""
    sizes = f"batch {chosen.batch} in micro-batches of {chosen.micro_batch}, {chosen.epochs} epochs"
    sizes += f", {chosen.draw or chosen.micro_batch} drawn at once"
    print(f"{sizes}, {chosen.prompt} tokens of prompt, {chosen.response} of response")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    theirs = (chosen.trl_python or trl_environment()).absolute() if set(chosen.only) - {"ours"} else None
    python = {name: theirs if theirs and name != "ours" else Path(sys.executable) for name in chosen.only}
    timed: dict[str, list[Figures]] = {name: [] for name in chosen.only}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(work, chosen)
        for number in range(chosen.rounds):
            for name in chosen.only:
                figures = in_fresh_process(name, python[name], work)
                timed[name].append(figures)
                updates = ", ".join(f"{cpu:.1f}" for cpu in figures.cpu_seconds)
                print(f"round {number}, {name}: CPU-s {updates}  (load {os.getloadavg()[0]:.1f})", flush=True)
        if len({figures.tokens_drawn for rounds in timed.values() for figures in rounds}) > 1:
            sys.exit("The sides drew different numbers of tokens, so nothing was compared.")
        counted = {name: in_fresh_process(name, python[name], work, count_tensors=True) for name in chosen.only}
    report({name: summarise(timed[name], counted[name]) for name in chosen.only})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--draw", type=int, help="responses sampled at once (default: the micro-batch)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--response", type=int, default=16, help="tokens")
    parser.add_argument("--epochs", type=int, default=4, help="passes over a batch")
    parser.add_argument("--updates", type=int, default=3, help="of each process")
    parser.add_argument("--rounds", type=int, default=1, help="fresh processes of each side")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--base-model", default="embedded", help="as in a config: a folder, or a name on the hub")
    parser.add_argument("--trl-python", type=Path, help="an environment with trl 1.12 and retroformer's other needs")
    parser.add_argument("--side", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count-tensors", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.side:
        print(json.dumps(measure(chosen.side, chosen.folder, count_tensors=chosen.count_tensors)))
    else:
        compare(chosen)


if __name__ == "__main__":
    main()
