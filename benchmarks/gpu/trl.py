"""An update of our stages beside one of TRL's trainers, for PPO those of the last TRL that has it."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.gpu.piece import ROOT, Bench, Piece

TITLE = "Beside TRL"
COLUMNS = ("s", "TRL, s", "times as fast", "memory over the loaded model, GiB: Retroformer, TRL, share")
NOTE = (
    "`benchmarks/training.py --card`: the same adapters, tokens and optimiser on both sides, the embedded model in "
    "bfloat16. PPO runs against TRL 1.12, whose package must be installable, the others against the installed TRL."
)


def pieces(bench: Bench) -> Iterator[Piece]:
    cases, prompts = (("ppo-4", "sft-4", "reward-4"), (384, 1500)) if bench.on_gpu else (("sft-4",), (32,))
    for case in cases:
        for prompt in prompts:
            yield Piece(f"trl/{case}, prompts of {prompt} tokens", partial(_work, bench, case, prompt))


def _work(bench: Bench, case: str, prompt: int) -> tuple[str, ...]:
    command = [sys.executable, "-m", "benchmarks.training", "--cases", case, "--prompts", str(prompt)]
    command += ["--dtype", "bfloat16", *(["--card"] if bench.on_gpu else ["--updates", "1", "--response", "8"])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {case}")]
    if done.returncode or not rows:
        raise RuntimeError(done.stderr[-300:] or done.stdout[-300:])
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    return cells[2], cells[3], cells[4], cells[6]
