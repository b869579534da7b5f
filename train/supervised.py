"""What imitation and the reward model share: how trl's trainers are set up, run, killed and resumed."""

import logging
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback

from retroformer import durable
from retroformer.errors import NotFinite
from retroformer.progress import Line, line
from retroformer.train_sections import Optimizer
from train import processes
from train.base import CPU, device, keep_trainables_in_fp32
from train.dataset import order_of_training, require_rows
from train.disk import writing_to
from train.finite import LOWER_THE_RATE, require_finite_gradients
from train.manifest import newest_sound, verify, write_manifest
from train.rows import Rows
from train.stage import Stage
from train.tracking import Tracker, tracker

WARMUP_SHARE = 0.05
"""Of all steps, in which the learning rate rises to its peak."""
COMPLETE = "complete"
"""The manifest in a checkpoint's folder, written when all else is on the disk."""
KEPT = 2
"""How many complete checkpoints there are, at most; one would do."""

logger = logging.getLogger(__name__)


def trainer_settings(stage: Stage, optimizer: Optimizer) -> dict[str, Any]:
    """Arguments of trl's configurations, each said, since trl's defaults differ from transformers' and change.

    The rows come in their final order with all epochs in them, hence one epoch in sequence; and trl must not cut
    them, hence no `max_length`: `require_length` has seen them.
    """
    page = stage.experiment.train
    on_cpu = device() == CPU
    return {
        "output_dir": str(stage.checkpoints),
        "per_device_train_batch_size": optimizer.micro_batch_size,
        "gradient_accumulation_steps": optimizer.batch_size // optimizer.micro_batch_size,
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "learning_rate": optimizer.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": WARMUP_SHARE,
        "max_length": None,
        "use_cpu": on_cpu,
        "bf16": page.dtype == "bfloat16",
        "activation_checkpointing": not on_cpu,
        "save_strategy": "steps" if processes.is_main() else "no",
        "save_steps": page.checkpoint_steps,
        # The trainer would delete those that were longest unchanged, the last complete one among them: Watcher does it.
        "save_total_limit": None,
        "logging_steps": 1,
        # The trainer would put a mean in place of a loss that is not finite: `DealingTrainer` refuses it.
        "logging_nan_inf_filter": False,
        "report_to": [],
        "seed": stage.experiment.seed,
        "disable_tqdm": True,
        "dataloader_pin_memory": not on_cpu,
    }


def ordered_rows(rows: Rows, lengths: Sequence[int], optimizer: Optimizer, seed: int) -> Dataset:
    """The rows of all epochs, in the order of training; each is on the disk once."""
    return rows.in_order(order_of_training(lengths, optimizer.batch_size, optimizer.epochs, seed))


class DealingTrainer(Trainer):  # type: ignore[misc]
    """Shares its micro-batches with the same trainer in other processes, see `train.processes`.

    Each reads every batch, computes its own micro-batches and sums gradients before the optimiser's step. All else is
    done alike everywhere, as one process does it: the count of tokens, the last batch where rows do not fill it,
    clipping, the schedule. What trl measures beside the loss (accuracy, margin) is of the main process's micro-batches.
    """

    _next = 0
    """The micro-batch of this optimiser step that comes next."""

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """The loss and gradients of a micro-batch; zero where it is another process's."""
        loss = torch.zeros((), device=self.args.device)
        if processes.mine(self._next):
            processes.own_numbers(self.args.seed, self.state.global_step, self._next)
            loss = super().training_step(model, inputs, num_items_in_batch)
        self._next += 1
        if self.accelerator.sync_gradients:
            processes.sum_gradients(trained(model))
            require_finite_gradients(model.named_parameters(), f"in step {self.state.global_step + 1}")
            self._next = 0
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's own, with the loss of all micro-batches.

        Raises:
            NotFinite: the loss is infinite or not a number.
        """
        if "loss" in logs:
            logs["loss"] = processes.total(logs["loss"])
            if not math.isfinite(logs["loss"]):
                raise NotFinite(f"The loss is {logs['loss']} in step {self.state.global_step}: {LOWER_THE_RATE}")
        super().log(logs, start_time)


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that training moves."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Watcher(TrainerCallback):  # type: ignore[misc]
    """Shows and tracks each step's loss; marks checkpoints whose files are all there, and then deletes old ones."""

    def __init__(self, progress: Line, track: Tracker) -> None:
        self._progress, self._track = progress, track

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self._progress.show(state.global_step, f"loss {logs['loss']:.3f}")
            self._track(state.global_step, logs)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir)
        _complete(folder / f"checkpoint-{state.global_step}")
        _delete_all_but(state.global_step, folder)


def complete_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that were completely written, the newest last."""
    return sorted((path.parent for path in folder.glob(f"checkpoint-*/{COMPLETE}")), key=_step)


def _complete(checkpoint: Path) -> None:
    """Write the manifest of a checkpoint once its files are on the disk."""
    durable.sync(checkpoint)
    paths = [path for path in checkpoint.rglob("*") if path.is_file() and path != checkpoint / COMPLETE]
    write_manifest(checkpoint / COMPLETE, {str(path.relative_to(checkpoint)): path for path in sorted(paths)})
    durable.sync_entries(checkpoint.parent)


def _load(checkpoint: Path) -> Path:
    """The checkpoint, which is as it was written. Raises DamagedFile."""
    verify(checkpoint / COMPLETE)
    return checkpoint


def _to_resume_from(stage: Stage) -> Path | None:
    """The newest sound checkpoint of a stage; None where none was completed. Raises DamagedFile: all are damaged."""
    folder = stage.checkpoints
    complete = complete_checkpoints(folder)
    resumed = newest_sound(folder, complete, _load)
    newest = _step(complete[-1]) if complete else 0
    for partial in (path for path in folder.glob("checkpoint-*") if _step(path) > newest):
        where = f"goes on from {resumed}" if resumed else "begins again"
        logger.warning("Checkpoint %s was not completed: training %s.", partial, where)
    return resumed


def _delete_all_but(step: int, folder: Path) -> None:
    """Keep the last complete checkpoints up to `step`.

    What goes are older ones, what was left half-written or half-deleted by a kill, and later ones: they were damaged,
    and passed over when the stage went on.
    """
    kept = [path for path in complete_checkpoints(folder) if _step(path) <= step][-KEPT:]
    for checkpoint in list(folder.glob("checkpoint-*")):
        if checkpoint not in kept:
            # First of all, so that no kill leaves half a checkpoint that looks complete.
            (checkpoint / COMPLETE).unlink(missing_ok=True)
            shutil.rmtree(checkpoint)


def run_trainer(trainer: Any, stage: Stage, rows: int) -> dict[str, Any]:
    """Train from the last checkpoint on, or from the start; and tell what happened, over all of the stage's steps.

    Raises:
        OSError: the disk is full.
        DamagedFile: there are checkpoints, and all of them are damaged.
        NotFinite: a loss or gradient is infinite or not a number.
        RuntimeError: the trainer does not hold `rows` rows.
    """
    require_rows(len(trainer.train_dataset), rows)
    keep_trainables_in_fp32(trainer.model)
    processes.copy_from_main(trained(trainer.model))
    trainer.remove_callback(PrinterCallback)
    resumed = _to_resume_from(stage)
    done = _step(resumed) if resumed else 0
    steps = math.ceil(rows / (trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps))
    shown = line(f"train {stage.name}", steps, done, console=processes.screen())
    with tracker(stage) as track, shown as progress:
        trainer.add_callback(Watcher(progress, track))
        with writing_to(stage.checkpoints):
            trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"steps": trainer.state.global_step, "resumed_from_step": done, "losses": losses}


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
