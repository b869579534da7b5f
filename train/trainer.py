"""Configures, runs and resumes the trainers of the actor, imitation, the reward model and DPO."""

import logging
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainerCallback

from retroformer.errors import NotFinite
from retroformer.files import durable
from retroformer.run.progress import ProgressLine, line

from . import processes
from .base import CPU, compute_dtype, device, trainable
from .integrity import LOWER_THE_RATE, newest_sound, require_finite_gradients, verify, write_manifest, writing_to
from .loop import WARMUP_SHARE, Stopped, Tracker, stop_requested, tracker, warm_up
from .stage import Stage, warn_if_still

COMPLETE = "complete"
"""Name of the manifest in a checkpoint's folder, written after all other files."""
KEPT = 2
"""Complete checkpoints to keep: the newest, and one more in case the newest is damaged."""

logger = logging.getLogger(__name__)


def trainer_settings(stage: Stage, learning_rate: float) -> dict[str, Any]:
    """Return the arguments of the trainer's config. All are explicit, since TRL's defaults differ from transformers'.

    The batches are already in their final order with all epochs, so the trainer runs one epoch in sequence, and takes
    one batch for each step. TRL would compute layers again by itself: `save_memory` decides that.
    """
    train = stage.experiment.train
    on_cpu = device() == CPU
    return {
        "output_dir": str(stage.checkpoints),
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "learning_rate": learning_rate,
        "use_cpu": on_cpu,
        "bf16": compute_dtype(train) == "bfloat16",
        "save_strategy": "steps" if processes.is_main() else "no",
        "save_steps": train.checkpoint_steps,
        # `Watcher` deletes old checkpoints; the trainer might delete the last complete one.
        "save_total_limit": None,
        "logging_steps": 1,
        # `ParallelTrainer` stops at a loss that is not finite; the trainer would replace it by a mean.
        "logging_nan_inf_filter": False,
        "report_to": [],
        "seed": stage.experiment.seed,
        "disable_tqdm": True,
        "dataloader_pin_memory": not on_cpu,
        "activation_checkpointing": False,
        "remove_unused_columns": False,
    }


class ParallelTrainer(Trainer):  # type: ignore[misc]
    """Takes an optimiser step for each batch, whose number a row of the dataset has under the name `batch`.

    It shares the micro-batches with the same trainer in other processes, see `train.processes`: each process computes
    its own ones, and sums gradients with the others before the optimiser's step. Everything else is the same in all
    processes: the token count, an incomplete last batch, clipping, and the learning rates.
    """

    def losses(self, batch: int) -> Iterator[Callable[[], Tensor]]:
        """Yield a function for each micro-batch of a batch, which computes its share in the loss of the batch."""
        raise NotImplementedError

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Compute the loss and the gradients of a batch, micro-batch by micro-batch."""
        model.train()
        loss = torch.zeros((), device=self.args.device)
        for index, loss_of_part in enumerate(self.losses(int(inputs["batch"]))):
            if processes.is_mine(index):
                processes.seed_item(self.args.seed, self.state.global_step, index)
                part = loss_of_part()
                part.backward()  # type: ignore[no-untyped-call]
                loss += part.detach()
        processes.sum_gradients(trainable(model))
        require_finite_gradients(model.named_parameters(), f"in step {self.state.global_step + 1}")
        return loss

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Let the learning rate rise to its peak and fall to 0, linearly; that of transformers starts at 0."""
        warmup = math.ceil(WARMUP_SHARE * num_training_steps)
        decay = max(1, num_training_steps - warmup)
        self.lr_scheduler = LambdaLR(
            optimizer or self.optimizer,
            lambda step: min(warm_up(step, warmup), (num_training_steps - step) / decay),
        )
        return self.lr_scheduler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the trainer does, with the loss of all processes.

        Raises:
            NotFinite: the loss is infinite or not a number.
        """
        if "loss" in logs:
            logs["loss"] = processes.total(logs["loss"])
            if not math.isfinite(logs["loss"]):
                raise NotFinite(f"The loss is {logs['loss']} in step {self.state.global_step}: {LOWER_THE_RATE}")
        super().log(logs, start_time)


class Watcher(TrainerCallback):  # type: ignore[misc]
    """Shows and tracks each step's loss; marks new checkpoints as complete, and deletes old ones; obeys SIGTERM."""

    def __init__(self, progress: ProgressLine, track: Tracker) -> None:
        self._progress, self._track = progress, track

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self._progress.show(state.global_step, f"loss {logs['loss']:.3f}")
            self._track(state.global_step, logs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if stop_requested():
            control.should_training_stop = True
            control.should_save = processes.is_main()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir)
        _complete(folder / f"checkpoint-{state.global_step}")
        _delete_all_but(state.global_step, folder)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the completely written checkpoints, the newest last."""
    return sorted((path.parent for path in folder.glob(f"checkpoint-*/{COMPLETE}")), key=_step)


def _complete(checkpoint: Path) -> None:
    """Flush a checkpoint's files to disk, then write its manifest."""
    durable.sync(checkpoint)
    paths = [path for path in checkpoint.rglob("*") if path.is_file() and path != checkpoint / COMPLETE]
    write_manifest(checkpoint / COMPLETE, {str(path.relative_to(checkpoint)): path for path in sorted(paths)})
    durable.sync_entries(checkpoint.parent)


def _to_resume_from(stage: Stage) -> Path | None:
    """Return the newest sound checkpoint, or None if none is complete. Raises DamagedFile if all are damaged."""
    folder = stage.checkpoints
    complete = complete_checkpoints(folder)

    def verified(checkpoint: Path) -> Path:
        verify(checkpoint / COMPLETE)
        return checkpoint

    resumed = newest_sound(folder, complete, verified)
    newest = _step(complete[-1]) if complete else 0
    for partial in (path for path in folder.glob("checkpoint-*") if _step(path) > newest):
        where = f"goes on from {resumed}" if resumed else "begins again"
        logger.warning("Checkpoint %s was not completed: training %s.", partial, where)
    return resumed


def _delete_all_but(step: int, folder: Path) -> None:
    """Delete all checkpoints but the last complete ones up to `step`.

    Deleted are older ones, those that a kill left half-written or half-deleted, and later ones, which were damaged and
    skipped when the stage resumed.
    """
    kept = [path for path in complete_checkpoints(folder) if _step(path) <= step][-KEPT:]
    for checkpoint in list(folder.glob("checkpoint-*")):
        if checkpoint not in kept:
            # The manifest goes first, so that a kill leaves no half checkpoint that looks complete.
            (checkpoint / COMPLETE).unlink(missing_ok=True)
            shutil.rmtree(checkpoint)


def run_trainer(trainer: Any, stage: Stage) -> dict[str, Any]:
    """Train from the last checkpoint or from the start; return the steps and the losses of the whole stage.

    Raises:
        OSError: the disk is full.
        DamagedFile: there are checkpoints, and all of them are damaged.
        NotFinite: a loss or gradient is infinite or not a number.
        Stopped: SIGTERM has asked for it.
    """
    processes.copy_from_main(trainable(trainer.model))
    trainer.remove_callback(PrinterCallback)
    resumed = _to_resume_from(stage)
    done = _step(resumed) if resumed else 0
    steps = len(trainer.train_dataset)
    warn_if_still(stage, steps, trainer.args.learning_rate)
    shown = line(f"train {stage.name}", steps, done, console=processes.screen())
    with tracker(stage, done) as track, shown as progress:
        trainer.add_callback(Watcher(progress, track))
        with writing_to(stage.checkpoints):
            trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
    if (taken := trainer.state.global_step) < steps:
        raise Stopped(stage.name, taken, steps, "step")
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"steps": trainer.state.global_step, "resumed_from_step": done, "losses": losses}


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
