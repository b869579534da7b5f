"""Several processes on one stage, each with a card of its own, as `accelerate launch` starts them.

Micro-batches are dealt among them: each is computed in one process, and what it gives is told to all. So the weights
are the same everywhere, and a step of the optimiser sees the batch that a single process sees. What differs from a
single process:

1. Gradients of micro-batches are added in another order.
2. Each micro-batch that is drawn, or drops out, has random numbers of its own, where a process without a launcher
   draws one micro-batch after the other. So the draws depend on no number of processes, one included.

Libraries are not told of the others. transformers' trainer would fill up the last batch with rows of the first, and
trains through a wrapper (DDP) that sums only what was computed in a forward pass of its own; the losses of `train`
enter the model elsewhere. Each process sees no card but its own, since libraries take the first, or all.

Without a launcher nothing here does anything, and nothing is imported for it.
"""

import atexit
import logging
import os
import random
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
"""Of processes for one that does what the others cannot, such as asking a server for all responses of an update. That
one has died is no matter of waiting: connections break, and the launcher ends the others."""
FIRST_WORD_SECONDS = 60.0
"""For the main process to end with its sentence, and the launcher to end the others, before one says the same."""


class Place(NamedTuple):
    """Which of how many this process is; the first one is the main process."""

    rank: int
    size: int


_place: Place | None = None
"""None without a launcher."""


def count() -> int:
    """How many processes work on the stage."""
    return _place.size if _place else 1


def is_main() -> bool:
    """Whether this process is the one that writes and speaks."""
    return _place is None or _place.rank == 0


def screen() -> Console | None:
    """Where progress is shown: on standard error by the main process, nowhere by the others."""
    return None if is_main() else Console(file=StringIO())


@contextmanager
def joined() -> Iterator[None]:
    """Within this, all processes that a launcher started work on one stage; nothing happens without a launcher.

    Raises:
        ConfigError: the launcher is to split the model, or starts more processes than there are cards.
        ServiceError: another process has ended.
    """
    global _place
    if "WORLD_SIZE" not in os.environ:
        yield
        return
    import torch.distributed

    rank, number, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    _place = Place(rank, number)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        _require_whole_models()
        torch.distributed.init_process_group(_take_card(local_rank), timeout=LONGEST_WAIT, rank=rank, world_size=number)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
        if not is_main():
            logging.disable(logging.WARNING)
        yield
        atexit.register(_leave)
    except (RetroformerError, KeyboardInterrupt):
        if not is_main():
            time.sleep(FIRST_WORD_SECONDS)
        raise
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        _place = None


def require_one(what: str) -> None:
    """Raises ConfigError where a launcher started several processes for what one process does."""
    if count() > 1:
        raise ConfigError(
            f"`train {what}` runs in one process, and a launcher has started {count()}: start it as `python -m train`."
        )


def each(items: Iterable[Item], do: Callable[[Item], Result]) -> list[Result]:
    """What `do` gives for every item, in their order: each is done in one process and told to all."""
    if _place is None:
        return [do(item) for item in items]
    import torch

    common = int(torch.randint(2**48, ()))
    done: dict[int, Result] = {}
    for index, item in enumerate(items):
        if mine(index):
            own_numbers(common, index)
            done[index] = do(item)
    # Whoever did what, all go on with the same random numbers.
    own_numbers(common)
    everything: list[Any] = [None] * _place.size
    with _hearing_others():
        torch.distributed.all_gather_object(everything, done)
    known: dict[int, Result] = {index: result for part in everything for index, result in part.items()}
    return [known[index] for index in range(len(known))]


def mine(index: int) -> bool:
    """Whether this process does the piece of work with this number."""
    return _place is None or index % _place.size == _place.rank


def own_numbers(*names: int) -> None:
    """Random numbers for a piece of work, by its name alone; without a launcher one piece goes on after the other."""
    if _place is None:
        return
    import torch

    torch.manual_seed(random.Random(f"piece of work {names}").getrandbits(63))


def sum_gradients(parameters: Sequence["nn.Parameter"]) -> None:
    """Add up what all processes have of each gradient, none being zero."""
    if _place is None:
        return
    import torch

    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    with _hearing_others():
        torch.distributed.all_reduce(flat)
    _fill(gradients, flat)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def copy_from_main(parameters: Sequence["nn.Parameter"]) -> None:
    """Give every process the values of the main one, which cards of different makes might have drawn otherwise."""
    if _place is None:
        return
    import torch

    values = [parameter.data for parameter in parameters]
    flat = torch.cat([value.flatten() for value in values])
    with _hearing_others():
        torch.distributed.broadcast(flat, 0)
    _fill(values, flat)


def total(number: float) -> float:
    """The sum of a number over all processes."""
    return sum(each(range(count()), lambda _: number)) if _place else number


def _fill(tensors: Sequence["Tensor"], flat: "Tensor") -> None:
    import torch

    sizes = [tensor.numel() for tensor in tensors]
    for tensor, values in zip(tensors, torch.split(flat, sizes), strict=True):
        tensor.copy_(values.view_as(tensor))


def _end_with(launcher: int) -> None:
    """A killed launcher leaves its processes alive, and they would go on writing beside those of the next one."""
    while os.getppid() == launcher:
        time.sleep(1)
    os._exit(1)


def _leave() -> None:
    """End at once: threads of torch.distributed may abort a process that has done its work while Python shuts down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _require_whole_models() -> None:
    for name, told in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(name, "").lower() == "true":
            raise ConfigError(
                f"The launcher is set to {told}, but each process holds the whole model: launch without it, and for "
                "a larger model set train.quantization=nf4 (`python -m train plan` says what fits)."
            )


def _take_card(local_rank: int) -> str:
    """Hide all cards but this process's own; returns how processes speak to each other."""
    import torch

    cards = torch.cuda.device_count()  # Asks the driver; CUDA itself starts later, and reads what is set here.
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" or not cards:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return "gloo"
    if local_rank >= cards:
        raise ConfigError(f"Process {local_rank + 1} has no card, there are {cards}: launch no more than that.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(cards)))
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local_rank]
    return "nccl"


@contextmanager
def _hearing_others() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ServiceError(
            "Another process of this stage has ended and says why itself: run the same command again to go on."
        ) from error
