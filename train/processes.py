"""Data parallelism: several processes on one stage, one GPU each, as `accelerate launch` starts them.

Each micro-batch is computed in one process, and its result is sent to all. So the weights are the same in all
processes, and an optimiser step sees the same batch as in a single process. Differences from a single process:

1. Gradients of micro-batches are added in another order.
2. Each micro-batch is generated, and dropped out, with a random seed of its own, while a process without a launcher
   uses one random stream. So the result does not depend on the number of processes under a launcher, one included.

Libraries do not see the other processes. transformers' trainer would fill the last batch with rows of the first, and
its wrapper (DDP) sums only gradients of its own forward pass, which the losses of `train` bypass. Each process sees
only its own GPU, since libraries use the first, or all.

Without a launcher, `process_group` hides all GPUs but the first; the other functions do nothing special, and import
nothing.
"""

import atexit
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rich.console import Console

from retroformer.errors import ConfigError, RetroformerError, ServiceError

if TYPE_CHECKING:
    from torch import Tensor, nn

Item = TypeVar("Item")
Result = TypeVar("Result")

LONGEST_WAIT = timedelta(hours=24)
"""How long processes wait for one that works alone, for example on a server's responses of an update. They wait by
gloo, whose connections break at once if a process dies."""
LONGEST_EXCHANGE = timedelta(minutes=10)
"""How long an exchange of tensors may take once all processes have come to it. NCCL notices a dead process by this
alone."""
RANK0_ERROR_GRACE_SECONDS = 60.0
"""Time for the main process to print its error, and for the launcher to end all others, before another prints it."""


class Rank(NamedTuple):
    """The rank of this process among all; rank 0 is the main process."""

    rank: int
    size: int
    on_machine: int
    """Number of processes on this machine."""


_place: Rank | None = None
"""None without a launcher."""
_waiting_group: Any = None
"""The group of all processes in which they wait for each other."""


def count() -> int:
    """Return the number of processes that work on the stage."""
    return _place.size if _place else 1


def count_on_machine() -> int:
    """Return the number of processes that work on the stage on this machine, and share its memory."""
    return _place.on_machine if _place else 1


def is_main() -> bool:
    """Return True in the process that writes files and prints."""
    return _place is None or _place.rank == 0


def screen() -> Console | None:
    """Return the console for progress: None (standard error) in the main process, a silent one in the others."""
    return None if is_main() else Console(file=StringIO())


@contextmanager
def process_group() -> Iterator[None]:
    """Connect all processes that a launcher started, for the duration of the block; without one, use one GPU.

    Raises:
        ConfigError: the launcher is set to split the model, or starts more processes than there are GPUs.
        ServiceError: another process has ended.
    """
    global _place, _waiting_group
    # Memory that PPO frees in one phase is used in the next; and images that ask for TF32 do not get it for logits.
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    os.environ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "0"
    if "WORLD_SIZE" not in os.environ:
        # transformers' trainer would multiply the batch by the number of visible GPUs.
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        yield
        return
    import torch.distributed

    rank, number, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    _place = Rank(rank, number, on_machine=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        _require_whole_models()
        world: Any = {"timeout": LONGEST_EXCHANGE, "rank": rank, "world_size": number}
        torch.distributed.init_process_group(_take_card(local_rank), **world)
        _waiting_group = torch.distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
        if not is_main():
            logging.disable(logging.WARNING)
        yield
        atexit.register(_leave)
    except (RetroformerError, KeyboardInterrupt):
        if not is_main():
            time.sleep(RANK0_ERROR_GRACE_SECONDS)
        raise
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        _place = None


def require_one(what: str) -> None:
    """Raise ConfigError if a launcher started several processes for a command that runs in one."""
    if count() > 1:
        raise ConfigError(
            f"`train {what}` runs in one process, and a launcher has started {count()}: "
            "run `retroformer train` without it."
        )


def each(items: Iterable[Item], do: Callable[[Item], Result]) -> list[Result]:
    """Return `do(item)` for every item, in order. Each is computed in one process; all processes get all results."""
    if _place is None:
        return [do(item) for item in items]
    import torch

    common = int(torch.randint(2**48, ()))
    done: dict[int, Result] = {}
    for index, item in enumerate(items):
        if is_mine(index):
            seed_item(common, index)
            done[index] = do(item)
    # All processes continue with the same random state, whatever items they computed.
    seed_item(common)
    results = {index: result for part in _gathered(_place, done) for index, result in part.items()}
    return [results[index] for index in range(len(results))]


def is_mine(index: int) -> bool:
    """Return True if this process computes the item with this index."""
    return _place is None or index % _place.size == _place.rank


def seed_item(*names: int) -> None:
    """Seed torch for the item with these numbers; without a launcher, keep the single random stream."""
    if _place is None:
        return
    import torch

    torch.manual_seed(random.Random(f"piece of work {names}").getrandbits(63))


def sum_gradients(parameters: Sequence["nn.Parameter"]) -> None:
    """Sum the gradients of all processes; a missing gradient counts as zero."""
    if _place is None:
        return
    import torch

    gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters]
    _exchange(gradients, torch.distributed.all_reduce)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def copy_from_main(parameters: Sequence["nn.Parameter"]) -> None:
    """Copy the main process's values to all others: GPUs of different models may initialise different values."""
    if _place is None:
        return
    import torch

    _exchange([parameter.data for parameter in parameters], lambda flat: torch.distributed.broadcast(flat, 0))


def total(number: float) -> float:
    """Return the sum of a number over all processes."""
    return sum(each(range(count()), lambda _: number)) if _place else number


def require_same(fact: object, what: str) -> None:
    """Raise ConfigError unless `fact`, in JSON's types, is the same in all processes."""
    if _place is None:
        return
    first, *others = _gathered(_place, fact)
    if any(other != first for other in others):
        raise ConfigError(
            f"The processes of this stage do not see the same {what}: let them share the folder of the run, the store "
            "and the config."
        )


def _gathered(place: Rank, value: Item) -> list[Item]:
    """Return the values of all processes, in the order of their ranks."""
    import torch

    values: list[Any] = [None] * place.size
    with _reporting_lost_processes():
        torch.distributed.all_gather_object(values, value, group=_waiting_group)
    return values


def _exchange(tensors: Sequence["Tensor"], collective: Callable[["Tensor"], object]) -> None:
    """Run a collective operation of torch on all tensors at once."""
    import torch

    flat = torch.cat([tensor.flatten() for tensor in tensors])
    with _reporting_lost_processes():
        torch.distributed.barrier(group=_waiting_group)
        collective(flat)
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, values in zip(tensors, torch.split(flat, sizes), strict=True):
        tensor.copy_(values.view_as(tensor))


def _end_with(launcher: int) -> None:
    """End this process when the launcher is gone: after a kill, it would go on writing beside the next launch."""
    while os.getppid() == launcher:
        time.sleep(1)
    os._exit(1)


def _leave() -> None:
    """End the process at once, since threads of torch.distributed may abort it while Python shuts down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _require_whole_models() -> None:
    for name, mode in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(name, "").lower() == "true":
            raise ConfigError(
                f"The launcher is set to {mode}, but each process holds the whole model: launch without it, and for "
                "a larger model set train.quantization=nf4 (`retroformer train plan` says what fits)."
            )


def _take_card(local_rank: int) -> str:
    """Hide all GPUs but this process's own; return the name of torch's communication backend."""
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    cards = [] if on_cpu else _visible_cards()
    if not cards:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return "gloo"
    if local_rank >= len(cards):
        raise ConfigError(f"Process {local_rank + 1} has no GPU: launch at most {len(cards)} processes.")
    os.environ["CUDA_VISIBLE_DEVICES"] = cards[local_rank]
    return "nccl"


def _visible_cards() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    They are counted in another process: a driver that was asked once does not read the variable again.
    """
    import torch

    if torch.version.cuda is None:
        return []
    count = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    number = int(subprocess.run(count, capture_output=True, text=True, check=True).stdout)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:number] if visible else list(map(str, range(number)))


@contextmanager
def _reporting_lost_processes() -> Iterator[None]:
    """Raise ServiceError if another process has ended."""
    try:
        yield
    except RuntimeError as error:
        raise ServiceError(
            "Another process of this stage has ended, with an error of its own: run the same command again to resume."
        ) from error
