"""What training will take, said before anything is loaded: memory by stage, what fits which card, tokens, and time.

`python -m train plan EXPERIMENT.yaml` counts the model of the page on the meta device; where there is a GPU and the
weights are there, it then takes real steps and says how far off the count was.
"""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace

from retroformer.assembly import read_page
from retroformer.config import Experiment
from retroformer.errors import ConfigError, MissingInput
from retroformer.train_sections import Grpo, Optimizer, Ppo
from train.architecture import Architecture, architecture, is_here, read_config
from train.memory import (
    USABLE_SHARE,
    Load,
    Setting,
    StageMemory,
    adapter_parameters,
    largest_micro_batch,
    setting_of,
)
from train.stage_kind import StageName, kinds
from train.workload import throughput, workload

USAGE = "python -m train plan EXPERIMENT.yaml [key=value ...] [--card GIB] [--tokens N,N] [--like RUN] [--measure]"
GIB = 1024**3
CARDS_GIB = (24.0, 40.0, 80.0)
PAPER_MILLIONS = {1: 0.53, 4: 2.25}
"""Trainable parameters that Retroformer's appendix C tells for its ranks, in millions."""


def plan(arguments: Sequence[str]) -> Iterator[str]:
    """The plan of a page, a paragraph at a time.

    Raises:
        ConfigError: the page or an option is wrong.
        MissingInput: nothing is known about the shape of the base model.
    """
    options = _options(arguments)
    experiment = read_page([options.page, *options.overrides], USAGE).experiment
    lengths: list[int] = options.tokens or [experiment.train.max_length]
    if min(lengths) <= experiment.reflector.max_new_tokens:
        raise ConfigError(
            f"--tokens {min(lengths)} leaves no room for a prompt beside reflector.max_new_tokens="
            f"{experiment.reflector.max_new_tokens}: ask for more tokens."
        )
    found = read_config(experiment.train.base_model)
    shape = architecture(found.config)
    yield _told(experiment, shape, found.source)
    gpu = setting_of(experiment.train, on_gpu=True)
    for tokens in lengths:
        yield _by_stage(experiment, shape, gpu, tokens)
    yield _by_card(experiment, shape, gpu, lengths, options.card or CARDS_GIB)
    yield _work(experiment, options.like)
    yield from _measured(experiment, shape, lengths[0], options.measure)


def memories(experiment: Experiment, shape: Architecture, setting: Setting, tokens: int) -> list[StageMemory]:
    """Of all stages, with the page's micro-batches, on samples of `tokens`."""

    def load(page: Optimizer) -> Load:
        drawn = page.draw_batch_size if isinstance(page, Ppo | Grpo) else None
        drawn = drawn and min(drawn, page.batch_size)
        return Load(page.micro_batch_size, tokens, experiment.reflector.max_new_tokens, drawn)

    return [StageMemory(kind, shape, setting, load(getattr(experiment.train, kind.name))) for kind in kinds(experiment)]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown that is aligned, so that a terminal shows it as well."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    line = "| " + " | ".join("-" * width for width in widths) + " |"
    told = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in (header, *rows)]
    return "\n".join([told[0], line, *told[1:]])


def _told(experiment: Experiment, shape: Architecture, source: str) -> str:
    page = experiment.train
    held = "NF4 with double quantisation" if page.quantization == "nf4" else page.dtype
    adapter = adapter_parameters(shape, page.lora)
    lines = [
        f"{page.base_model}: {shape.parameters / 1e9:.3f} billion parameters, by {source}.",
        f"Held in {held}; embeddings, norms and heads in {page.dtype}.",
        f"LoRA of rank {page.lora.rank} on {page.lora.targets}: {adapter:,} parameters "
        f"({adapter / shape.parameters:.4%}), trained in fp32.",
    ]
    if paper := PAPER_MILLIONS.get(page.lora.rank):
        lines.append(f"The paper tells {paper} million for rank {page.lora.rank} on a model of 7 billion.")
    return "\n".join(lines)


def _by_stage(experiment: Experiment, shape: Architecture, setting: Setting, tokens: int) -> str:
    stages = memories(experiment, shape, setting, tokens)
    plain = [replace(one, setting=replace(setting, checkpointing=False)) for one in stages]
    terms = {
        "micro-batch": [str(one.load.micro_batch) for one in stages],
        "weights": [_gib(one.weights) for one in stages],
        "adapters (fp32)": [_gib(one.adapters) for one in stages],
        "gradients (fp32)": [_gib(one.gradients) for one in stages],
        "optimizer (Adam, fp32)": [_gib(one.optimizer) for one in stages],
        "activations, with checkpointing": [_gib(one.activations) for one in stages],
        "activations, without": [_gib(one.activations) for one in plain],
        "logits": [_gib(one.logits) for one in stages],
        "backward workspace": [_gib(one.backward_workspace) for one in stages],
        "KV cache of generation": [_gib(one.cache) for one in stages],
        "peak": [_gib(one.peak) for one in stages],
        "peak without checkpointing": [_gib(one.peak) for one in plain],
    }
    title = f"GiB on a GPU at {tokens} tokens, {experiment.reflector.max_new_tokens} of them the response's:"
    return f"{title}\n\n" + table(
        ["", *(one.kind.name for one in stages)], [[name, *cells] for name, cells in terms.items()]
    )


def _by_card(
    experiment: Experiment, shape: Architecture, setting: Setting, lengths: Sequence[int], cards: Sequence[float]
) -> str:
    rows = []
    for card in cards:
        for tokens in lengths:
            stages = memories(experiment, shape, setting, tokens)
            cells = [_fit(one, getattr(experiment.train, one.kind.name).batch_size, card * GIB) for one in stages]
            rows.append([f"{card:g} GiB", str(tokens), *cells])
    title = (
        f"The largest micro-batch that divides the stage's batch and fits into {USABLE_SHARE:.0%} of a card; in "
        "brackets the largest that fits. A micro-batch of reward and dpo is pairs, so twice as many texts."
    )
    return f"{title}\n\n" + table(["card", "tokens", *(kind.name for kind in kinds(experiment))], rows)


def _fit(memory: StageMemory, batch_size: int, card_bytes: float) -> str:
    fits = largest_micro_batch(memory, card_bytes)
    if not fits:
        least = memory.with_micro_batch(1)
        drawing = " to draw" if least.drawing_peak > least.training_peak else ""
        return f"does not fit ({_gib(least.peak)} GiB{drawing})"
    dividing = max(size for size in range(1, min(fits, batch_size) + 1) if batch_size % size == 0)
    return f"{dividing} ({fits})"


def _work(experiment: Experiment, like: str | None) -> str:
    rows = [[kind.name, *_work_of(experiment, kind.name, like)] for kind in kinds(experiment)]
    return "What there is to do:\n\n" + table(["stage", "samples", "longest", "steps", "tokens", "time"], rows)


def _work_of(experiment: Experiment, stage: StageName, like: str | None) -> list[str]:
    speed = throughput(experiment, stage, like)
    told = (
        f"at {speed.tokens_per_second:.0f} tokens/s ({speed.source})"
        if speed
        else "no measured throughput of this base in this type"
    )
    if not is_here(experiment.train.base_model):
        return ["not known before the tokenizer is here", "", "", "", f"not known: {told}"]
    try:
        work = workload(experiment, stage)
    except MissingInput:
        return ["not collected yet", "", "", "", f"not known: {told}"]
    time = f"{_duration(work.tokens / speed.tokens_per_second)} {told}" if speed else f"not known: {told}"
    return [f"{work.samples:,}", f"{work.longest:,}", f"{work.steps:,}", f"{work.tokens:,}", time]


def _measured(experiment: Experiment, shape: Architecture, tokens: int, wanted: bool) -> Iterator[str]:
    """Real steps of each stage with the page's micro-batches, where there is a GPU, or where it was asked for."""
    import torch

    on_gpu = torch.cuda.is_available()
    if not wanted and not (on_gpu and is_here(experiment.train.base_model)):
        return
    from train.rehearsal import rehearse

    room = torch.cuda.mem_get_info()[0] if on_gpu else float("inf")
    yield f"Measured by real steps on {'this GPU' if on_gpu else 'the CPU'} at {tokens} tokens:"
    for memory in memories(experiment, shape, setting_of(experiment.train, on_gpu=on_gpu), tokens):
        if memory.peak > room:
            yield f"{memory.kind.name}: not tried, its {_gib(memory.peak)} GiB do not fit."
            continue
        found = rehearse(experiment, memory.kind.name, memory.load)
        yield (
            f"{memory.kind.name}: {_gib(found)} GiB, the estimate is {_gib(memory.peak)} GiB "
            f"({memory.peak / found - 1:+.1%})."
        )


def _gib(size: float) -> str:
    return f"{size / GIB:.3f}" if 0 < size < 0.1 * GIB else f"{size / GIB:.2f}"


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser("python -m train plan", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("page", metavar="EXPERIMENT.yaml")
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[])
    parser.add_argument("--card", type=_positive, action="append", metavar="GIB", help="memory of a GPU; repeat it")
    parser.add_argument("--tokens", type=_lengths, metavar="N,N", help="sample lengths (default: train.max_length)")
    parser.add_argument("--like", metavar="RUN", help="the run whose finished stages tell the throughput")
    parser.add_argument("--measure", action="store_true", help="take real steps here, on a CPU, too")
    return parser.parse_intermixed_args(list(arguments))


def _positive(text: str) -> float:
    if not (number := float(text)) > 0:
        raise ArgumentTypeError(f"{text!r} is not above 0")
    return number


def _lengths(text: str) -> list[int]:
    return [int(_positive(part)) for part in text.split(",")]
