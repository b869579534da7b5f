"""The text of `retroformer train plan`: memory of each stage, what fits a GPU, and settings for what does not fit.

The model's parameters are counted on the meta device. Weights are loaded only to measure real steps.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from retroformer.config.experiment import Experiment
from retroformer.config.sections.train import Train
from retroformer.errors import ConfigError

from ..base import compute_dtype
from ..stage_kinds import Device
from .estimate import GIB, USABLE_SHARE, Estimate, PlannedStage, cases, estimate, fit, memory_of
from .shape import Shape, read_config, shape_of

CARDS_GIB = (24.0, 40.0, 80.0)


def describe_plan(
    experiment: Experiment, cards: Sequence[float] = (), lengths: Sequence[int] = (), *, measure: bool = False
) -> Iterator[str]:
    """Describe the memory of all stages, one paragraph at a time: on this machine's device first, then on GPUs.

    `cards` are GPU memories in GiB (default: `CARDS_GIB`), `lengths` are sample lengths in tokens (default:
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
    on_this_machine = {length: cases(experiment, shape, here, length) for length in lengths}
    on_gpu = {length: cases(experiment, shape, "cuda", length) for length in lengths}
    name = f"this machine's {'GPU' if here == 'cuda' else 'CPU'} ({_gib(memory)} GiB, {_gib(room)} of them for tensors)"
    for stages in on_this_machine.values():
        yield _by_stage(name, stages)
        yield "\n".join(f"{case.kind.name} {_verdict(case, room)}." for case in stages)
    for stages in on_gpu.values() if here == "cpu" else ():
        yield _by_stage("a GPU", stages)
    on_cpu = {length: cases(experiment, shape, "cpu", length) for length in lengths}
    yield _by_place(on_gpu, on_cpu, cards or CARDS_GIB)
    if measure:
        yield from _measured(experiment, on_this_machine[lengths[0]], room)


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


def _by_place(
    on_gpu: Mapping[int, list[PlannedStage]], on_cpu: Mapping[int, list[PlannedStage]], cards: Sequence[float]
) -> str:
    """Format what fits GPUs with the memories `cards`, in GiB, and the CPU of this machine."""
    gpu_rooms = [(f"{card:g} GiB", USABLE_SHARE["cuda"] * card * GIB, on_gpu) for card in cards]
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
    names = (case.kind.name for case in next(iter(on_gpu.values())))
    return f"{title}\n\n" + table(["card", "tokens", *names], rows)


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
