"""Estimates the memory of a training stage before anything is loaded, and refuses what does not fit. Sizes in bytes.

What autograd keeps follows from the code of transformers' Llama, peft's LoRA and bitsandbytes, and holds for similar
decoders. A micro-batch counts as one row of responses, and terms that change a peak by less than 1 percent up to rank
16 are left out. docs/results/memory.md compares the estimates with measurements.
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import torch

from retroformer.config.experiment import Experiment
from retroformer.config.sections.train import Grpo, Ppo, Train
from retroformer.errors import ConfigError
from retroformer.files.available_memory import available_memory
from retroformer.models.precision import computes_bfloat16

from .. import processes
from ..base import CPU, device, read_config
from ..shared_prompt.reading import TOKEN_CHUNK, VOCABULARY_CHUNK
from ..stage import Stage, with_fitted_steps
from ..stage_kinds import ACTOR_ROWS, STAGES, Device, StageKind, stages_of
from .shape import Shape, shape_of

GIB = 1024**3
SAMPLES = 1000
"""Texts or pairs of the run whose time is estimated."""
USABLE_SHARE = {"cuda": 0.92, "cpu": 1 / 1.3}
"""Share of the memory that tensors can use. A GPU's driver keeps about half a GiB, and freed blocks of odd sizes cannot
all be reused. A process on a CPU grows to 1.3 times its tensors: 1.21 to 1.45 times in the runs of
docs/results/memory.md, most at the smallest ones, to which the code of the libraries adds a hundred MiB or more."""
FP32 = 4
NF4 = 1 / 2 + 1 / 64 + FP32 / (64 * 256)
"""Bytes of a 4-bit weight: 64 weights share a scale of one byte, 256 scales share one in fp32 (QLoRA, section 3)."""


class PlannedStage(NamedTuple):
    """A stage on a device, with the sizes of its batches."""

    kind: StageKind
    shape: Shape
    train: Train
    device: Device
    """On a GPU, attention needs no dense mask."""
    micro_batch_tokens: int
    tokens: int
    """Tokens of a sample: prompt and response."""
    response_tokens: int
    drawn: int = 0
    """Responses sampled at once; 0 if this process samples none."""
    room: float = 0
    """Bytes that sampling may take even where training takes less: those of a GPU."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def recomputes(self) -> bool:
        """True if layers keep only their input."""
        return self.on_gpu and self.train.gradient_checkpointing

    @property
    def nf4(self) -> bool:
        return self.train.quantization == "nf4"

    @property
    def size(self) -> int:
        """Bytes of a number in the compute dtype."""
        fast = self.train.dtype == "auto" and (self.on_gpu or computes_bfloat16(torch))
        return 2 if fast or self.train.dtype == "bfloat16" else FP32

    @property
    def read_at_once(self) -> int:
        """Tokens of the largest micro-batch: at least one sample, or the two texts of a pair."""
        return max(self.micro_batch_tokens, self.tokens + (self.kind.responses - 1) * self.response_tokens)


class Estimate(NamedTuple):
    """The permanent memory of a stage, and the peaks of its two phases: training, and sampling responses."""

    weights: float
    adapters_and_optimizer: float
    """Adapters and trained heads in fp32: weights, gradients, and Adam's two moments."""
    activations: float
    logits: float
    backward_workspace: float
    kv_cache: float
    """KV cache of all layers at the last token of the responses."""
    training_peak: float
    drawing_peak: float

    @property
    def peak(self) -> float:
        return max(self.training_peak, self.drawing_peak)


def cases(experiment: Experiment, shape: Shape, device: Device, tokens: int, room: float = 0) -> list[PlannedStage]:
    """Return all stages that a config can run, with its micro-batches, on samples of `tokens` tokens."""
    return [case_of(experiment, kind, shape, device, tokens, room) for kind in stages_of(experiment)]


def case_of(
    experiment: Experiment, kind: StageKind, shape: Shape, device: Device, tokens: int, room: float = 0
) -> PlannedStage:
    """Return one stage of a config on samples of `tokens` tokens.

    As many responses are sampled at once as take no more memory than training does, or than the `room` of a GPU.
    Another number gives other responses.
    """
    at_once = ACTOR_ROWS * tokens if kind.trains_actor else experiment.train.micro_batch_tokens
    lengths = tokens, min(tokens, experiment.reflector.max_new_tokens)
    train = with_fitted_steps(experiment, kind.name, SAMPLES).train
    return _drawing(PlannedStage(kind, shape, train, device, at_once, *lengths, room=room))


def sampled_at_once(experiment: Experiment, stage: str, tokens: int) -> int:
    """Return how many responses a stage samples in one batch, if its longest prompt and response have `tokens`."""
    shape = shape_of(read_config(experiment.train.base_model))
    (kind,) = (kind for kind in stages_of(experiment) if kind.name == stage)
    if not torch.cuda.is_available():
        return max(1, case_of(experiment, kind, shape, "cpu", tokens).drawn)
    # Live returns come from a server on the same GPU.
    is_alone = not (stage == "grpo" and experiment.train.grpo.reward == "live")
    room = USABLE_SHARE["cuda"] * memory_of("cuda") * is_alone
    drawn = case_of(experiment, kind, shape, "cuda", tokens, room).drawn
    # Batches are divided among processes, so there are at least as many.
    section = experiment.train.settings(stage)
    assert isinstance(section, Ppo | Grpo)
    return max(1, min(drawn, -(-section.batch_size // processes.count())))


def _drawing(case: PlannedStage) -> PlannedStage:
    """Return the case with the number of responses that are sampled at once."""
    section = case.train.settings(case.kind.name)
    if not isinstance(section, Ppo | Grpo) or case.train.generation is not None:
        return case

    def fits_beside_training(rows: int) -> bool:
        memory = estimate(case._replace(drawn=rows))
        return memory.drawing_peak <= max(memory.training_peak, case.room)

    return case._replace(drawn=min(max(1, largest(fits_beside_training)), section.batch_size))


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to a million that fits, given that all smaller ones do; 0 if none fits."""
    return bisect_right(range(1, 1_000_001), False, key=lambda number: not fits(number))


def estimate(case: PlannedStage) -> Estimate:
    """Estimate the memory of a stage by parts, and its peaks."""
    kind, shape, size = case.kind, case.shape, case.size
    head = shape.head_parameters if kind.reads_language_head else 0
    # bitsandbytes leaves embeddings, norms and heads in the compute dtype.
    weights = shape.matrix_parameters * (NF4 if case.nf4 else size) + size * (head + shape.other_parameters)
    parameters = shape.adapter_parameters(case.train.lora) + kind.trains_head * shape.hidden
    adapters = FP32 * parameters * (len(kind.needs) + 4)
    tokens = case.read_at_once
    layer, activations, backward, _ = _texts(case, tokens, tokens)
    # Log-probabilities are computed for a part of the tokens and of the vocabulary at once: the head's weights and
    # logits in fp32, and the hidden states of all tokens with their gradients.
    words = min(shape.vocabulary, VOCABULARY_CHUNK)
    of_head = 3 * words * min(tokens, TOKEN_CHUNK) + words * shape.hidden * (size < FP32)
    logits = FP32 * (of_head + 2 * tokens * shape.hidden) if kind.reads_language_head else 0
    # Training peaks either at the end of the forward pass, with the logits and with the last norm's input in fp32 and
    # its output; or in the last layer, where the backward pass begins.
    last_norm = tokens * shape.hidden * (FP32 + size)
    training = max(activations - case.recomputes * layer + last_norm + logits, activations + backward)
    # Prompts are read in one pass, then one token at a time. At the last token, a layer's cache may be copied, without
    # responses that have ended, and repeated for queries that share keys and values. A token is drawn from its logits,
    # their copy and probabilities in fp32, and sums in fp64.
    cached = case.drawn * 2 * shape.layers * shape.key_value_heads * shape.head_size * size
    cache, prompt = cached * case.tokens, case.tokens - case.response_tokens
    group = shape.heads // shape.key_value_heads
    last_token = cache * (1 + (1 + group * (group > 1)) / shape.layers)
    logits_of_step = case.drawn * shape.vocabulary * (size + 4 * FP32)
    drawing = max(cached * prompt + _texts(case, case.drawn * prompt, 0)[-1], last_token, cache + logits_of_step)
    held = weights + adapters
    peaks = held + training, held + drawing if case.drawn else 0
    return Estimate(weights, adapters, activations, logits, backward, cache, *peaks)


def _texts(case: PlannedStage, tokens: int, length: int) -> tuple[float, float, float, float]:
    """Estimate the memory of packed rows of `length` tokens, `tokens` in all: what autograd keeps of a layer and of the
    model, the workspace of the backward pass, and the workspace of a pass without autograd.
    """
    shape, size = case.shape, case.size
    # A dense mask has a number for each pair of tokens of a row.
    mask = 0 if case.on_gpu else tokens * length * size
    # Autograd keeps fp32 copies of the inputs of both norms; rotated queries, keys and values for each query head, and
    # the output of fused attention; input and output of silu and the other factor of the product.
    feed_forward, queries = 3 * size * shape.intermediate, size * shape.heads * shape.head_size
    # LoRA: q, k and v share an input, and so do gate and up; fused attention keeps its output anyway.
    of_all_linear = (shape.hidden + shape.intermediate) * (case.train.lora.targets == "all-linear")
    adapter_inputs = size * (shape.hidden + of_all_linear)
    layer = tokens * (2 * FP32 * shape.hidden + 4 * queries + feed_forward + adapter_inputs)
    inputs = shape.layers * size * tokens * shape.hidden
    # Under autocast the adapters, which are in fp32, have copies in the compute dtype.
    cast_adapters = size % FP32 * shape.adapter_parameters(case.train.lora)
    kept = shape.adapted_layers(case.train.lora) * layer  # Autograd does not reach below the first adapter.
    activations = mask + cast_adapters + (inputs + layer if case.recomputes else kept)
    # Gradients of the feed-forward product and its two factors. A 4-bit matrix is unpacked before it is multiplied. A
    # pass without autograd holds embeddings, residual, its norm and the sum, beside the largest tensors of a layer.
    unpacked = case.nf4 * size * max(matrix.parameters for matrix in shape.matrices)
    backward = tokens * (feed_forward + size * shape.hidden) + unpacked
    forward = mask + tokens * (max(feed_forward, 4 * queries) + 4 * size * shape.hidden) + unpacked
    return layer, activations, backward, forward


class Card(NamedTuple):
    """A typical GPU: products in 16 bits and bytes of its memory, each per second."""

    name: str
    flops: float
    bandwidth: float


CARDS = {24.0: Card("A10", 125e12, 600e9), 40.0: Card("A100", 312e12, 1555e9), 80.0: Card("H100", 989e12, 3350e9)}
"""Typical GPUs by their memory in GiB."""
USED_FLOPS = 0.4
"""Share of a card's products that training usually reaches."""
LAYER_SECONDS = 1e-3
"""Time of a layer in a step of sampling that the launch of its kernels takes at least."""


def seconds(case: PlannedStage, card: Card) -> float:
    """Estimate the time of an optimiser step, or of an update of PPO or GRPO, on a card; never measured."""
    shape, section = case.shape, case.train.settings(case.kind.name)
    prompt, width = case.tokens - case.response_tokens, shape.heads * shape.head_size
    per_token = 2 * shape.matrix_parameters + 2 * shape.layers * width * case.tokens
    per_response = case.response_tokens * (per_token + 2 * shape.vocabulary * shape.hidden)
    # The weights are frozen, so a backward pass costs as much as a forward pass.
    training = 3 if case.recomputes else 2
    if not isinstance(section, Ppo | Grpo):
        batch = case.train.batch(case.kind.name)
        assert batch is not None
        flops: float = batch * (prompt * per_token + case.kind.responses * per_response)
        return training * flops / (USED_FLOPS * card.flops)
    responses_each = section.group if isinstance(section, Grpo) else section.responses_per_prompt
    prompts = section.batch_size / responses_each * prompt * per_token
    # The policy and the adapters beside it read each response; sampling reads the prompts.
    passes = 1 + len(case.kind.needs) + section.epochs * training
    flops = passes * (prompts + section.batch_size * per_response) + prompts * bool(case.drawn)
    if not case.drawn:
        return flops / (USED_FLOPS * card.flops)
    # A step reads the weights and the cache. 4-bit weights are unpacked, and written, before they are read.
    memory = estimate(case)
    traffic = memory.weights + case.nf4 * 2 * case.size * shape.matrix_parameters + memory.kv_cache
    steps = -(-section.batch_size // case.drawn) * case.response_tokens
    step = max(shape.layers * LAYER_SECONDS, traffic / card.bandwidth)
    return flops / (USED_FLOPS * card.flops) + steps * step


def fit(case: PlannedStage, room: float) -> tuple[int, list[str]]:
    """Return the largest micro-batch in tokens that fits into `room` bytes (0 if none fits), and settings that fit.

    The settings are, in order of preference: a smaller micro-batch, for which fewer responses are sampled at once, too;
    shorter samples. They are [] if the model itself does not fit.
    """
    least = case._replace(micro_batch_tokens=1)
    tokens = largest(lambda tokens: estimate(_drawing(case._replace(micro_batch_tokens=tokens))).peak <= room)
    if tokens >= least.read_at_once:
        return tokens, [f"train.micro_batch_tokens={tokens}"]
    response = case.response_tokens
    prompt = largest(lambda tokens: estimate(_drawing(least._replace(tokens=response + tokens))).peak <= room)
    if not prompt:
        return 0, []
    length = response + prompt
    shorter = least._replace(tokens=length).read_at_once
    return 0, [f"train.micro_batch_tokens={shorter}", f"train.max_length={length}"]


def memory_of(place: Device) -> int:
    """Return the memory of this machine's device: on a GPU all of it, on a CPU what is available, or all if unknown."""
    if place == "cuda":
        return torch.cuda.mem_get_info()[1]
    return available_memory() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(stage: Stage, tokens: int) -> None:
    """Check that a stage whose longest sample has `tokens` tokens fits into the memory of a CPU.

    On a GPU an allocation that does not fit ends with an error of its own. On a CPU the kernel kills some process.

    Raises:
        ConfigError: it does not; the message says what it needs, what is available and which settings fit.
    """
    available = available_memory()
    if device() != CPU or available is None or not tokens:
        return
    experiment = stage.experiment
    try:
        shape = shape_of(read_config(experiment.train.base_model))
    except AttributeError:
        return  # The estimate holds for decoders in the form of Llama only.
    kind = next((kind for kind in stages_of(experiment) if kind.name == stage.name), STAGES[stage.name])
    case = case_of(experiment, kind, shape, "cpu", tokens)
    available //= processes.count_on_machine()
    room = USABLE_SHARE["cpu"] * available
    if (peak := estimate(case).peak) <= room:
        return
    settings = " ".join(fit(case, room)[1])
    raise ConfigError(
        f"`train {stage.name}` would take about {peak / USABLE_SHARE['cpu'] / GIB:.1f} GiB on this CPU with "
        f"micro-batches of {case.read_at_once} tokens and samples of up to {tokens}, and {available / GIB:.1f} GiB are "
        f"available: {f'set {settings}' if settings else 'take a smaller train.base_model'}, or train on a GPU "
        "(`retroformer train plan EXPERIMENT.yaml` shows what fits)."
    )
