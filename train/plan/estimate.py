"""Estimates the memory of a training stage by arithmetic, without a model or a device. All sizes are in bytes.

What autograd keeps follows from the code of transformers' Llama, peft's LoRA, bitsandbytes and trl, and holds for
similar decoders. All rows count as long as the longest, and terms that change a peak by less than 1 percent up to rank
16 are left out. docs/results/memory.md compares the estimates with measurements.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.train import Grpo, Optimizer, Ppo, Train

from ..base import computes_bfloat16
from ..stage_kinds import Device, StageKind, stages_of
from .shape import Shape

FP32 = 4
NF4 = 1 / 2 + 1 / 64 + FP32 / (64 * 256)
"""Bytes of a 4-bit weight: 64 weights share a scale of one byte, 256 scales share one in fp32 (QLoRA, section 3)."""


class Case(NamedTuple):
    """A stage on a device, with the sizes of its batches."""

    kind: StageKind
    shape: Shape
    train: Train
    device: Device
    """On a GPU attention is fused, and layers keep only their input (gradient checkpointing)."""
    micro_batch: int
    tokens: int
    """Tokens of a sample: prompt and response."""
    response_tokens: int
    drawn: int | None = 0
    """Responses sampled at once: None for a micro-batch, 0 if this process samples none."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def nf4(self) -> bool:
        return self.train.quantization == "nf4"

    @property
    def size(self) -> int:
        """Bytes of a number in the compute dtype."""
        fast = self.train.dtype == "auto" and (self.on_gpu or computes_bfloat16())
        return 2 if fast or self.train.dtype == "bfloat16" else FP32

    @property
    def rows_drawn(self) -> int:
        return self.micro_batch if self.drawn is None else self.drawn


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


def cases(experiment: Experiment, shape: Shape, device: Device, tokens: int) -> list[Case]:
    """Return all stages that a config can run, with its micro-batches, on samples of `tokens` tokens."""
    return [case_of(experiment, kind, shape, device, tokens) for kind in stages_of(experiment)]


def case_of(experiment: Experiment, kind: StageKind, shape: Shape, device: Device, tokens: int) -> Case:
    """Return one stage of a config on samples of `tokens` tokens."""
    section: Optimizer = getattr(experiment.train, kind.name)
    drawn: int | None = 0
    if isinstance(section, Ppo | Grpo) and section.generation is None:
        drawn = section.draw_batch_size and min(section.draw_batch_size, section.batch_size)
    lengths = tokens, min(tokens, experiment.reflector.max_new_tokens)
    return Case(kind, shape, experiment.train, device, section.micro_batch_size, *lengths, drawn)


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to a million that fits, given that all smaller ones do; 0 if none fits."""
    return bisect_right(range(1, 1_000_001), False, key=lambda number: not fits(number))


def estimate(case: Case) -> Estimate:
    """Estimate the memory of a stage by parts, and its peaks."""
    kind, shape, size = case.kind, case.shape, case.size
    head = shape.head_parameters if kind.language_head != "none" else 0
    # bitsandbytes leaves embeddings, norms and heads in the compute dtype.
    weights = shape.matrix_parameters * (NF4 if case.nf4 else size) + size * (head + shape.other_parameters)
    parameters = shape.adapter_parameters(case.train.lora) + kind.trains_head * shape.hidden
    adapters = FP32 * parameters * (len(kind.needs) + 4)
    rows = case.micro_batch * kind.texts_per_sample
    layer, activations, backward, _ = _texts(case, rows, case.tokens)
    logits = _logits(case, rows * case.response_tokens)
    # Training peaks either at the end of the forward pass, with the logits and with the last norm's input in fp32 and
    # its output; or in the last layer, where the backward pass begins.
    last_norm = rows * case.tokens * shape.hidden * (FP32 + size)
    training = max(activations - case.on_gpu * layer + last_norm + logits, activations + backward)
    # Prompts are read in one pass, then one token at a time. At the last token, a layer's cache is copied to append to
    # it, and repeated for queries that share keys and values.
    cached = case.rows_drawn * 2 * shape.layers * shape.key_value_heads * shape.head_size * size
    cache, prompt = cached * case.tokens, case.tokens - case.response_tokens
    group = shape.heads // shape.key_value_heads
    last_token = cache * (1 + (1 + group * (group > 1)) / shape.layers)
    drawing = max(cached * prompt + _texts(case, case.rows_drawn, prompt)[-1], last_token)
    held = weights + adapters
    peaks = held + training, held + drawing if case.rows_drawn else 0
    return Estimate(weights, adapters, activations, logits, backward, cache, *peaks)


def _texts(case: Case, rows: int, length: int) -> tuple[float, float, float, float]:
    """Estimate the memory of a batch of texts: what autograd keeps of a layer and of the model, the workspace of the
    backward pass, and the workspace of a pass without autograd.
    """
    shape, size, on_gpu, tokens = case.shape, case.size, case.on_gpu, rows * length
    copy = size % FP32  # Bytes of a copy of an fp32 number in the compute dtype; 0 if that is fp32.
    autocast = bool(copy) and case.device in case.kind.autocast_on
    # Either peft casts the input of every adapter; or autocast casts it once for all adapters that share it, for 4-bit
    # layers on a GPU and on the base of `train.rl.shared_base`.
    casts = bool(copy) and not (autocast and (case.kind.on_policy or (case.nf4 and on_gpu)))
    # Plain attention has a probability for each head and pair of tokens. Fused attention has a boolean mask, converted
    # to numbers in each layer. A single text has no padding, hence no mask, unless it was sampled.
    pairs = 0 if on_gpu else shape.heads * length
    mask = tokens * length if on_gpu and (rows > 1 or case.kind.on_policy) else 0
    # Autograd keeps fp32 copies of the inputs of both norms; rotated queries, keys and values for each query head;
    # input and output of silu and the other factor of the product; and the output of fused attention.
    feed_forward, queries = 3 * size * shape.intermediate, size * shape.heads * shape.head_size
    kept = 2 * FP32 * shape.hidden + (3 + on_gpu) * queries + feed_forward + pairs * (FP32 + copy)
    layer = tokens * (kept + _adapter_inputs(case, size if autocast else FP32, casts)) + mask * size
    inputs = shape.layers * size * tokens * shape.hidden
    cast_adapters = autocast * size * shape.adapter_parameters(case.train.lora)
    activations = mask + cast_adapters + (inputs + layer if on_gpu else shape.layers * layer)
    # The larger of: gradients of the feed-forward product and its two factors (adapters that cast their input also cast
    # its gradient); or gradients of softmax in fp32, when the tensors of the feed-forward part are already freed.
    both = casts and case.train.lora.targets == "all-linear"
    of_product = (FP32 + 2 * size) * shape.intermediate if both else feed_forward
    of_softmax = pairs * (2 * FP32 - copy) + 4 * queries - feed_forward - FP32 * shape.hidden
    # A 4-bit matrix is unpacked before it is multiplied. A pass without autograd holds embeddings, residual, its norm,
    # the sum and the mask, beside the largest tensors of a layer.
    unpacked = case.nf4 * size * max(matrix.parameters for matrix in shape.matrices)
    backward = tokens * (max(of_product, of_softmax) + size * shape.hidden) + unpacked
    worst = max(feed_forward, pairs * (2 * FP32 + copy) + 3 * queries)
    forward = tokens * (worst + 4 * size * shape.hidden + (on_gpu + size) * length) + unpacked
    return layer, activations, backward, forward


def _adapter_inputs(case: Case, size: int, casts: bool) -> float:
    """Estimate what autograd keeps for LoRA, per token and layer."""
    shape, lora = case.shape, case.train.lora
    # Stages that compare policies have no dropout; in others each target has its own dropout mask of bytes.
    drops = bool(lora.dropout) and not case.kind.needs
    if drops or casts:
        return (size + drops) * sum(matrix.inputs for matrix in shape.targets(lora)) / shape.layers
    # q, k and v share an input, and so do gate and up; fused attention keeps its output anyway.
    others = shape.hidden + shape.intermediate + (0 if case.on_gpu else shape.heads * shape.head_size)
    return size * (shape.hidden + (others if lora.targets == "all-linear" else 0))


def _logits(case: Case, tokens: int) -> float:
    """Estimate the log-probabilities of responses, their gradients and the logits', and the head's weights in fp32.

    The reward model has no language head, and for SFT on a GPU trl computes the logits in small pieces.
    """
    head, words = case.kind.language_head, case.shape.vocabulary
    if head == "none" or (head == "compute" and case.on_gpu):
        return 0
    return FP32 * words * (3 * tokens + case.shape.hidden * (head == "fp32" and case.size < FP32))
