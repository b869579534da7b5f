"""The text of `retroformer train plan`: memory of each stage, what fits a GPU, and settings for what does not fit.

The model's parameters are counted on the meta device. Weights are loaded only to measure real steps.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from retroformer.config.experiment import Experiment
from retroformer.config.sections.train import Train, Updates
from retroformer.errors import ConfigError

from ..base import compute_dtype, read_config
from ..stage_kinds import Device
from .estimate import (
    CARDS,
    GIB,
    SAMPLES,
    USABLE_SHARE,
    Estimate,
    PlannedStage,
    cases,
    estimate,
    fit,
    memory_of,
    seconds,
)
from .shape import Shape, shape_of


def describe_plan(
    experiment: Experiment, cards: Sequence[float] = (), lengths: Sequence[int] = (), *, measure: bool = False
) -> Iterator[str]:
    """Describe the memory of all stages, one paragraph at a time: on this machine's device first, then on GPUs.

    `cards` are GPU memories in GiB (default: those of `CARDS`), `lengths` are sample lengths in tokens (default:
    train.max_length). With `measure`, take real steps on this machine too.

    Raises:
        ConfigError: a sample length leaves no room for a prompt.
        MissingInput: the base model has no config.json, so its shape is unknown.
    """
    lengths = lengths or [experiment.train.max_length]
    if min(lengths) <= experiment.reflector.max_new_tokens:
        raise ConfigError(
            f"--tokens {min(lengths)} leaves no room for a prompt beside reflector.max_new_tokens="
            f"{experiment.reflector.max_new_tokens}: ask for more tokens."
        )
    shape = shape_of(read_config(experiment.train.base_model))
    here: Device = "cuda" if torch.cuda.is_available() else "cpu"
    memory = memory_of(here)
    room = USABLE_SHARE[here] * memory
    yield _model(experiment.train, shape)
    rooms = {card: USABLE_SHARE["cuda"] * card * GIB for card in cards or CARDS}
    on_this_machine = {
        length: cases(experiment, shape, here, length, room if here == "cuda" else 0) for length in lengths
    }
    on_gpu = {
        card: {length: cases(experiment, shape, "cuda", length, rooms[card]) for length in lengths} for card in rooms
    }
    smallest = min(rooms)
    name = f"this machine's {'GPU' if here == 'cuda' else 'CPU'} ({_gib(memory)} GiB, {_gib(room)} of them for tensors)"
    for stages in on_this_machine.values():
        yield _by_stage(name, stages)
        yield "\n".join(f"{case.kind.name} {_verdict(case, room)}." for case in stages)
    for stages in on_gpu[smallest].values() if here == "cpu" else ():
        yield _by_stage(f"a GPU of {smallest:g} GiB", stages)
    on_cpu = {length: cases(experiment, shape, "cpu", length) for length in lengths}
    yield _by_place(on_gpu, on_cpu)
    yield _times(on_gpu)
    if measure:
        # The steps sample as few responses as take no more memory than training.
        yield from _measured(experiment, cases(experiment, shape, here, lengths[0]), room)


def _verdict(case: PlannedStage, room: float) -> str:
    if estimate(case).peak <= room:
        return "fits"
    settings = " ".join(fit(case, room)[1])
    return f"does not fit: set {settings}" if settings else "does not fit"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with aligned columns, which is also readable in a terminal."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "| " + " | ".join("-" * width for width in widths) + " |", *lines[1:]])


def _model(train: Train, shape: Shape) -> str:
    adapter = shape.adapter_parameters(train.lora)
    held = "NF4 with double quantisation" if train.quantization == "nf4" else compute_dtype(train)
    return (
        f"{train.base_model}: {shape.parameters / 1e9:.3f} billion parameters, held in {held}.\n"
        f"LoRA of rank {train.lora.rank} on {train.lora.targets} of {shape.adapted_layers(train.lora)} layers: "
        f"{adapter:,} parameters ({adapter / shape.parameters:.4%}), trained in fp32."
    )


def _by_stage(place: str, stages: Sequence[PlannedStage]) -> str:
    rows = [["micro-batch, tokens", *(str(case.read_at_once) for case in stages)]]
    estimates = [estimate(case) for case in stages]
    for part in (*Estimate._fields, "peak"):
        rows += [[part.replace("_", " "), *(_gib(getattr(memory, part)) for memory in estimates)]]
    tokens, response = stages[0].tokens, stages[0].response_tokens
    title = f"GiB on {place} for samples of {tokens} tokens, {response} of them the response's; shorter ones take less:"
    return f"{title}\n\n" + table(["", *(case.kind.name for case in stages)], rows)


Planned = Mapping[int, Sequence[PlannedStage]]
"""Stages by the length of their samples in tokens."""


def _by_place(on_gpu: Mapping[float, Planned], on_cpu: Planned) -> str:
    """Format what fits GPUs, by their memory in GiB, and the CPU of this machine."""
    gpu_rooms = [(f"{card:g} GiB", USABLE_SHARE["cuda"] * card * GIB, planned) for card, planned in on_gpu.items()]
    memory = memory_of("cpu")
    places = [*gpu_rooms, (f"CPU, {memory / GIB:.0f} GiB", USABLE_SHARE["cpu"] * memory, on_cpu)]
    rows = [
        [name, str(length), *(_cell(case, room) for case in planned)]
        for name, room, stages in places
        for length, planned in stages.items()
    ]
    title = (
        f"The largest micro-batch in tokens that fits into {USABLE_SHARE['cuda']:.0%} of a GPU, or "
        f"{USABLE_SHARE['cpu']:.0%} of the memory that this machine has available on its CPU, which has no gradient "
        "checkpointing."
    )
    names = (case.kind.name for case in next(iter(on_cpu.values())))
    return f"{title}\n\n" + table(["card", "tokens", *names], rows)


def _times(on_gpu: Mapping[float, Planned]) -> str:
    """Format the time of a step and of a run on GPUs, by their memory in GiB."""
    rows = []
    for memory, planned in on_gpu.items():
        card = CARDS[min(CARDS, key=lambda gibibytes: abs(gibibytes - memory))]
        for length, stages in planned.items():
            times = ((case, seconds(case, card)) for case in stages)
            cells = [f"{_time(step)}, {_time(step * _steps(case))}" for case, step in times]
            rows.append([f"{memory:g} GiB ({card.name})", str(length), *cells])
    title = (
        "Time of an optimiser step or of an update of PPO and GRPO, and of a run: of all updates, or of all epochs "
        f"over {SAMPLES} texts, or failures with one pair each. Computed from what the cards can do, not measured."
    )
    names = (case.kind.name for case in stages)
    return f"{title}\n\n" + table(["card", "tokens", *names], rows)


def _steps(case: PlannedStage) -> float:
    """Return the number of updates of a run, or of steps on `SAMPLES` texts or failures."""
    section = case.train.settings(case.kind.name)
    if isinstance(section, Updates):
        return section.updates
    batch = case.train.batch(case.kind.name)
    assert batch is not None
    return case.train.steps(case.kind.name).epochs * SAMPLES / batch


def _time(length: float) -> str:
    size, unit = next(
        ((size, unit) for size, unit in ((86400, "d"), (3600, "h"), (60, "min")) if length >= 2 * size), (1, "s")
    )
    return f"{length / size:.2g} {unit}" if length < 10 * size else f"{length / size:.0f} {unit}"


def _cell(case: PlannedStage, room: float) -> str:
    tokens, _ = fit(case, room)
    return f"{tokens}" if tokens else _verdict(case, room)


def _measured(experiment: Experiment, stages: Sequence[PlannedStage], room: float) -> Iterator[str]:
    from .rehearsal import rehearse

    yield f"Measured by real steps on this machine at {stages[0].tokens} tokens:"
    for case in stages:
        if (peak := estimate(case).peak) > room:
            yield f"{case.kind.name}: not tried, its {_gib(peak)} GiB do not fit."
            continue
        used = rehearse(experiment, case)
        yield f"{case.kind.name}: {_gib(used)} GiB, the estimate is {_gib(peak)} GiB ({peak / used - 1:+.1%})."


def _gib(size: float) -> str:
    return f"{size / GIB:.3f}" if 0 < size < 0.1 * GIB else f"{size / GIB:.2f}"
