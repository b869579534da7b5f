"""`make gpu`: checks what a CPU cannot, on a machine with a card, and writes one report.

    python -m benchmarks.gpu [--out runs/gpu] [--seconds N] [--only PART_OF_A_NAME] [--cpu]

Each piece is a process with a time limit; what decides most comes first. OUT/report.md and report.json are written
after every piece. What has a result on this device and no fault is not repeated: the same command goes on after a kill.
Models have random weights in the shapes of real ones, in shared memory. No network is needed, nor a package beyond
torch, transformers, accelerate, peft and those of wheels.txt; TRL is measured where it is installed.

With --cpu, or without a card, everything runs with tiny shapes, which checks the kit and nothing else.
"""

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.report import NO_CARD, Result, device_name, write_report
from retroformer.files import durable

ROOT = Path(__file__).parents[2]
STAGES = ("sft", "reward", "dpo", "ppo", "grpo")
MODELS = ("Qwen3-4B", "Llama-3.1-8B", "LongChat-7b")


SECTIONS = {
    "card": ("card", "facts", 120),
    "step": ("steps", "step", 240),
    "gradients": ("gradients", "compare", 300),
    "generate": ("writing", "generate", 240),
    "serve": ("writing", "serve", 240),
    "kernels": ("card", "kernels", 60),
}
"""The function that yields the rows of a section's pieces, after its module, and the seconds that a piece may take."""


def pieces() -> list[str]:
    """Return the names of all pieces, SECTION/ARGUMENT/..., in the order of what decides most."""
    first = ["card", "step/Qwen3-4B/sft/8192", "step/Llama-3.1-8B/ppo/8192"]
    first += ["gradients/split", "generate/LongChat-7b", "serve/LongChat-7b", "kernels", "gradients/dense"]
    lengths = ["8192"]
    if device_name() != NO_CARD:  # On a CPU one length does, and flex attention has no gradients.
        lengths += ["2048", "16384"]
        first.append("gradients/flex")
    first += [f"{section}/{model}" for model in MODELS[:2] for section in ("generate", "serve")]
    # All of a model follow each other, since shared memory may not hold them all.
    steps = [f"step/{model}/{stage}/{length}" for model in MODELS for length in lengths for stage in STAGES]
    trl = [f"step/Qwen3-4B/{stage}/{length}/trl" for length in lengths for stage in ("sft", "reward", "dpo")]
    return list(dict.fromkeys([*first, *steps, *(trl if importlib.util.find_spec("trl") else [])]))


def run_piece(name: str, out: Path) -> None:
    """Run a piece in this process, write each of its rows at once, and end the process."""
    kind, *words = name.split("/")
    module, function, _ = SECTIONS[kind]
    rows = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(out, *words)
    with stored(out, name).with_suffix(".rows").open("a", buffering=1) as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    sys.stdout.flush()
    os._exit(0)  # The thread of the server's engine never ends.


def in_process_of_its_own(name: str, out: Path) -> Result:
    """Run a piece in a fresh process until its limit, and store its result; its output is in its log."""
    path, limit, began = stored(out, name), SECTIONS[name.partition("/")[0]][-1], time.monotonic()
    rows, log = path.with_suffix(".rows"), path.with_suffix(".log")
    rows.write_text("")
    command = [sys.executable, "-m", "benchmarks.gpu", "--piece", name, "--out", str(out)]
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
        try:
            fault = f"it ended with {status}" if (status := process.wait(limit)) else ""
        except subprocess.TimeoutExpired:
            fault = f"it took more than {limit} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if fault:
        fault += ": " + log.read_text().rstrip().rpartition("\n")[2][:200]
    measured = [json.loads(line) for line in rows.read_text().splitlines()]
    result = Result(name, device_name(), round(time.monotonic() - began, 1), measured, fault)
    durable.write_text(path, json.dumps(result._asdict()))
    return result


def stored(out: Path, name: str) -> Path:
    """Return the file of a piece's result."""
    return out / "pieces" / f"{name.replace('/', ' ')}.json"


def finished(out: Path) -> list[Result]:
    """Return the results on this device, in the order of the pieces."""
    paths = [path for name in pieces() if (path := stored(out, name)).is_file()]
    results = [Result(**json.loads(path.read_text())) for path in paths]
    return [result for result in results if result.device == device_name()]


def main() -> int:
    """Run the pieces that are left; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no piece after so many")
    parser.add_argument("--only", default="")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    out, began = chosen.out.resolve(), time.monotonic()
    # With several cards transformers' trainer would multiply the batch.
    card = "" if chosen.cpu else os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": card}
    if chosen.piece:
        run_piece(chosen.piece, out)
    (out / "pieces").mkdir(parents=True, exist_ok=True)
    done = {result.name for result in finished(out) if not result.fault}
    waiting = [name for name in pieces() if chosen.only in name and name not in done]
    while waiting and time.monotonic() - began < chosen.seconds:
        result = in_process_of_its_own(waiting.pop(0), out)
        write_report(out, finished(out), len(pieces()))
        print(f"{result.name}: {result.seconds:.0f} s {result.fault}", flush=True)
    print(f"{out / 'report.md'}; {len(waiting)} pieces are left" + (": run the same command again" if waiting else ""))
    if len(finished(out)) == len(pieces()):
        for models in (Path("/dev/shm/retroformer-gpu-kit"), out / "models"):
            shutil.rmtree(models, ignore_errors=True)
    return 1 if any(result.fault for result in finished(out)) else 0


if __name__ == "__main__":
    sys.exit(main())
