"""CPU-seconds and peak memory of an update of our training stages and of TRL's trainers, in one run.

    python benchmarks/training.py [--cases sft-4 reward-4 ...] [--prompts 384] [--response 48] [--updates 2]
                                  [--epochs 2] [--dtype float32]

Each side of each case is a fresh process with one thread. TRL's trainers are those of the installed TRL (1.16), for PPO
those of TRL 1.12, the last with PPO, in an environment in the cache that is made on the first run.

Equal on both sides: the base model (the embedded one, not quantised), the adapters' weights, the tokens, the batch, one
optimiser step for a batch, the same optimiser and rates, nothing saved. SFT, reward model and DPO must report the same
losses, and the other stages must sample the same number of tokens, or the run stops.

One update is one micro-batch on both sides, so both have the same texts in memory: for the four pairs of two good and
two bad texts these are eight rows of TRL's trainers and four texts in one packed row. TRL's other settings are lean: no
gradient checkpointing, which would cost a forward pass; no packing, no padding to multiples; the reference as a second
adapter on the policy's base; for PPO no adapter of the value model that is not needed, rollouts in one batch. Its fused
head computes logits in chunks.

CPU-s      CPU time (user and system) of an update, median. For DPO it includes the reading by the reference, for PPO
           and GRPO the sampling. Our check on the first batch, which is made once in a run, is shown apart.
increase   peak resident memory over that of the loaded model, in GiB
process    peak resident memory of the process, with libraries and loading, in GiB
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.training_cases import CASES, Sizes, StageWork, prepare, read_work
from retroformer.files.cache import cache_folder

ROOT = Path(__file__).parents[1]
SIDES = ("retroformer", "trl")
TRL_WITH_PPO = "trl==1.12.0"
GIB = 1024**3
LARGEST_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.05}
"""Between the losses of both sides, relative to the larger one."""


class TrainingFigures(NamedTuple):
    cpu_seconds: list[float]
    """CPU seconds of each update."""
    sampling_seconds: list[float]
    check_seconds: float
    losses: list[float]
    loaded_bytes: int
    increase_bytes: int
    process_bytes: int
    tokens_drawn: int

    @property
    def update(self) -> float:
        return statistics.median(self.cpu_seconds)

    @property
    def sampling(self) -> float:
        return statistics.median(self.sampling_seconds)


def measure(side: str, work: StageWork) -> TrainingFigures:
    from benchmarks.training_laps import Laps, reset_peak, resident

    ready, drawn, laps = _load(side, work), list[int](), Laps()

    def count_drawn(_: Any, __: Any, logits: Any) -> None:
        # Rollouts compute logits of the next token only, training of more tokens or none.
        if logits.ndim == 2 or logits.shape[1] == 1:
            drawn.append(len(logits))

    if head := ready.language_model.get_output_embeddings():  # A reward model has none.
        head.register_forward_hook(count_drawn)
    loading = resident().peak
    reset_peak()
    loaded = resident().now
    losses = ready.train(laps)
    peak = resident().peak
    return TrainingFigures(
        [lap.all + ready.seconds_before for lap in laps.laps],
        [lap.sampling for lap in laps.laps],
        sum(lap.check for lap in laps.laps),
        losses,
        loaded,
        peak - loaded,
        max(peak, loading),
        sum(drawn),
    )


def _load(side: str, work: StageWork) -> Any:
    if side == "retroformer":
        from benchmarks.training_retroformer import load_stage as load
    elif work.case.stage == "ppo":
        from benchmarks.training_ppo import load_trl_ppo as load
    else:
        from benchmarks.training_trl import load_trl as load
    return load(work)


def in_fresh_process(side: str, python: Path, folder: Path) -> TrainingFigures:
    """Return the figures of one side, measured in a fresh process. Exits if the process fails."""
    command = [str(python), __file__, "--side", side, "--folder", str(folder)]
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    settings |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=os.environ | settings, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
    return TrainingFigures(*json.loads(done.stdout.rstrip().rpartition("\n")[2]))


def require_equal_work(sizes: Sizes, packed: TrainingFigures, trl: TrainingFigures) -> None:
    """Exit if the sides did not compute the same losses, or drew different numbers of tokens."""
    if packed.tokens_drawn != trl.tokens_drawn or len(packed.losses) != len(trl.losses):
        sys.exit(f"{sizes.case}: the sides drew {packed.tokens_drawn} and {trl.tokens_drawn} tokens: not comparable.")
    limit = LARGEST_DIFFERENCE[sizes.dtype]
    if any(not math.isclose(*pair, rel_tol=limit) for pair in zip(packed.losses, trl.losses, strict=True)):
        sys.exit(f"{sizes.case}: the losses are {packed.losses} and {trl.losses}: not comparable.")


def row(sizes: Sizes, packed: TrainingFigures, trl: TrainingFigures) -> str:
    """Return a line of the table, a row of Markdown."""
    cells = [sizes.case, str(sizes.prompt)]
    cells += [f"{packed.update:.2f}", f"{trl.update:.2f}", f"**{trl.update / packed.update:.2f}**"]
    cells.append(f"{packed.sampling:.2f}, {trl.sampling:.2f}" if packed.tokens_drawn else "")
    for mine, other in ((packed.increase_bytes, trl.increase_bytes), (packed.process_bytes, trl.process_bytes)):
        cells.append(f"{mine / GIB:.2f}, {other / GIB:.2f}, **{mine / other:.2f}**")
    return "| " + " | ".join(cells) + " |"


HEADER = "| case | prompt | CPU-s | TRL | times | sampling | increase, GiB | process, GiB |\n" + "|---" * 8 + "|"


def compare(chosen: argparse.Namespace) -> None:
    print(
        f"{chosen.response} tokens of response, {chosen.dtype}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(HEADER, flush=True)
    for prompt in chosen.prompts:
        for name in chosen.cases:
            lengths = (prompt, chosen.response, chosen.updates, chosen.epochs)
            sizes = Sizes(name, *lengths, CASES[name].rows, chosen.dtype, chosen.base_model)
            packed, trl = _both(sizes)
            print(row(sizes, packed, trl), flush=True)
            if packed.check_seconds:
                print(f"  our check on the first batch: {packed.check_seconds:.2f} CPU-s", flush=True)


def _both(sizes: Sizes) -> Sequence[TrainingFigures]:
    python = trl_environment() if CASES[sizes.case].stage == "ppo" else Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        prepare(sizes, Path(folder))
        figures = [
            in_fresh_process("retroformer", Path(sys.executable), Path(folder)),
            in_fresh_process("trl", python, Path(folder)),
        ]
    require_equal_work(sizes, *figures)
    return figures


def trl_environment() -> Path:
    """Return the Python of an environment with TRL 1.12 that takes all else from this one; created if missing."""
    folder = cache_folder() / TRL_WITH_PPO.replace("==", "-")
    python, finished = folder / "bin" / "python", folder / "finished"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    if not finished.exists():
        print(f"Making TRL's environment in {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", TRL_WITH_PPO]
        subprocess.run(pip, check=True)
        finished.touch()
    # Its own packages take precedence over those of the folders in the .pth file.
    (packages / "retroformer.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--prompts", nargs="+", type=int, default=[128, 384, 1500], help="tokens")
    parser.add_argument("--response", type=int, default=48, help="tokens")
    parser.add_argument("--updates", type=int, default=3, help="of each process")
    parser.add_argument("--epochs", type=int, default=2, help="passes of PPO over a batch")
    parser.add_argument("--dtype", choices=tuple(LARGEST_DIFFERENCE), default="float32")
    parser.add_argument("--base-model", default="embedded", help="as in a config: a folder, or a name on the hub")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.side:
        print(json.dumps(measure(chosen.side, read_work(chosen.folder))))
    else:
        compare(chosen)


if __name__ == "__main__":
    main()
