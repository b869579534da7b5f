"""How much memory a stage of training takes, in arithmetic: no model, no device, every term with its reason.

Units are bytes. B rows of L tokens each are in memory at once, N = B * L; `c` is the size of a number in compute.
What autograd keeps was read from the code of the versions in pyproject.toml (transformers' Llama, peft's LoRA,
bitsandbytes' and trl's functions), and holds for decoders of that design: norms in fp32, grouped heads, rotary
positions, a gated feed-forward part, frozen weights.

Where it is simpler than the truth:

1. Rows are as long as the longest; what is allocated in pieces below a megabyte is left out.
2. An allocator's gaps and the driver's own memory are no tensors: `USABLE_SHARE` stands for them.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from retroformer.train_sections import Lora, Train
from train.architecture import Architecture, Matrix
from train.stage_kind import StageKind

FP32 = 4
NF4_BLOCK, ABSMAX_BLOCK = 64, 256
"""Weights that share a scale, and scales that share a scale of theirs (double quantisation; QLoRA, section 3)."""
NF4_TABLES = (16 + 256) * FP32 + FP32
"""Beside each matrix: the 16 levels of NF4, the 256 of its 8-bit scales, and their offset."""
ATTENTION_TARGETS = ("q_proj", "v_proj")
LOGITS_COPIES = 3
"""Log-probabilities and two tensors of their size: their gradient and that of the logits, or entropy's factors."""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
"""trl's language head on a GPU has logits of this many positions and words at once."""
USABLE_SHARE = 0.92
"""Of a card: the driver keeps about half a GiB, and freed blocks of odd sizes cannot all be used again."""


@dataclass(frozen=True)
class Setting:
    """How the model is held and trained."""

    quantized: bool
    number_bytes: int
    """Of compute and of weights that are not quantised: 2 for bfloat16, 4 for float32."""
    lora: Lora
    on_gpu: bool
    """Fused attention; on a CPU, plain attention keeps the probabilities of all pairs of tokens."""
    checkpointing: bool
    """Layers keep their input alone, and are computed again in the backward pass."""


@dataclass(frozen=True)
class Load:
    """What is in memory at once."""

    micro_batch: int
    tokens: int
    """Of a sample: prompt and response."""
    response_tokens: int
    drawn: int | None = None
    """Responses that are drawn at once; without a number as many as a micro-batch."""

    @property
    def rows_drawn(self) -> int:
        return self.drawn or self.micro_batch


def setting_of(page: Train, *, on_gpu: bool) -> Setting:
    """As train/base.py loads it: with memory-saving attention and checkpointing on a GPU, and neither on a CPU."""
    return Setting(page.quantization == "nf4", 2 if page.dtype == "bfloat16" else 4, page.lora, on_gpu, on_gpu)


def nf4_bytes(matrix: Matrix) -> int:
    """Half a byte a weight, a byte for each block's scale, and the scales' scales in fp32."""
    blocks = -(-matrix.parameters // NF4_BLOCK)
    return matrix.parameters // 2 + blocks + -(-blocks // ABSMAX_BLOCK) * FP32 + NF4_TABLES


def adapter_parameters(shape: Architecture, lora: Lora) -> int:
    """Those of A (rank x inputs) and B (outputs x rank) on every target."""
    return sum(lora.rank * (matrix.inputs + matrix.outputs) for matrix in targets(shape, lora))


def targets(shape: Architecture, lora: Lora) -> list[Matrix]:
    """The matrices that get an adapter."""
    return [one for one in shape.matrices if lora.targets == "all-linear" or one.name in ATTENTION_TARGETS]


@dataclass(frozen=True)
class StageMemory:
    """What a stage holds, and what it needs on top of that in its two phases: drawing responses, and training."""

    kind: StageKind
    shape: Architecture
    setting: Setting
    load: Load

    @property
    def rows(self) -> int:
        """Texts in memory at once."""
        return self.load.micro_batch * self.kind.texts

    @cached_property
    def weights(self) -> int:
        """Matrices as they are quantised; bitsandbytes leaves embeddings, norms and heads in the compute's type."""
        size, shape = self.setting.number_bytes, self.shape
        matrices = sum(
            nf4_bytes(matrix) if self.setting.quantized else matrix.parameters * size for matrix in shape.matrices
        )
        head = 0 if self.kind.language_head == "none" else shape.head_parameters
        return matrices + size * (head + shape.other_parameters)

    @cached_property
    def trained(self) -> int:
        """Parameters: the adapter's, and those of the score head or the value head."""
        return adapter_parameters(self.shape, self.setting.lora) + self.kind.trains_head * self.shape.hidden

    @property
    def adapters(self) -> int:
        """In fp32, with the heads beside them."""
        return FP32 * self.trained * self.kind.adapters

    @property
    def gradients(self) -> int:
        return FP32 * self.trained

    @property
    def optimizer(self) -> int:
        """Adam's two moments in fp32."""
        return 2 * FP32 * self.trained

    @property
    def held(self) -> int:
        """Throughout the stage, from its first step on."""
        return self.weights + self.adapters + self.gradients + self.optimizer

    @property
    def activations(self) -> int:
        """What the forward pass keeps for the backward pass, and its masks; with checkpointing also one layer's."""
        shape, size = self.shape, self.setting.number_bytes
        tokens = self.rows * self.load.tokens
        layer, input_bytes = self.saved_by_layer, size * tokens * shape.hidden
        recomputed = shape.layers * input_bytes + layer
        layers = recomputed if self.setting.checkpointing else shape.layers * layer
        cast_adapters = size * adapter_parameters(shape, self.setting.lora) if self._autocast else 0
        # A layer on a CPU adds its mask and forgets it; the forward pass alone holds it.
        return layers + (self.mask if self.setting.on_gpu else 0) + cast_adapters

    @property
    def last_norm(self) -> int:
        """The norm after the layers keeps its input in fp32, and whatever head there is reads its output."""
        return self.rows * self.load.tokens * self.shape.hidden * (FP32 + self.setting.number_bytes)

    @property
    def saved_by_layer(self) -> int:
        """What autograd keeps of one decoder layer for all rows."""
        shape, size = self.shape, self.setting.number_bytes
        queries = shape.heads * shape.head_size
        # Both norms square and scale an fp32 copy of their input.
        norms = 2 * FP32 * shape.hidden
        # Queries, keys and values after their rotation, keys and values once for every query head (padded rows need
        # a mask, and with a mask heads cannot share them).
        attention = 3 * size * queries
        # Input and output of silu, and the factor beside it.
        feed_forward = 3 * size * shape.intermediate
        if self.setting.on_gpu:
            # The output and, for each head, the logarithm of the sum of exponentials.
            attention += size * queries + FP32 * shape.heads
        else:
            # Probabilities in fp32, and once more in the compute's type where that is another.
            attention += shape.heads * self.load.tokens * (FP32 + (size if size < FP32 else 0))
        per_token = norms + attention + feed_forward + self._adapter_inputs
        return self.rows * self.load.tokens * per_token + self._layer_mask

    @property
    def _autocast(self) -> bool:
        """Whether adapters, which are in fp32, compute in the type of everything else."""
        here = self.kind.autocast == "always" or (self.kind.autocast == "on a GPU" and self.setting.on_gpu)
        return here and self.setting.number_bytes < FP32

    @property
    def _copies_adapter_inputs(self) -> bool:
        """Whether peft casts the input of every adapter for itself.

        Under autocast it does not where it is told not to, nor for 4-bit layers on a GPU: adapters share an input then.
        """
        told = self.kind.casts == "autocast"
        shares = self._autocast and (told or (self.setting.quantized and self.setting.on_gpu))
        return self.setting.number_bytes < FP32 and not shares

    @property
    def _adapter_inputs(self) -> int:
        """What LoRA keeps of a token in a layer: the inputs of A and of B."""
        shape, lora = self.shape, self.setting.lora
        size = self.setting.number_bytes if self._autocast else FP32
        on_layer = targets(shape, lora)[: len(targets(shape, lora)) // shape.layers]
        low = size * lora.rank * len(on_layer)
        every = size * sum(matrix.inputs for matrix in on_layer)
        if lora.dropout and self.kind.adapters == 1:
            # Every target drops out other entries: its own input, and a mask of a byte for each. Not where policies
            # are compared, which must not differ by noise.
            return low + every + every // size
        if self._copies_adapter_inputs:
            return low + every
        if lora.targets == "attention":
            return low + size * shape.hidden
        # q, k and v share an input, so do gate and up; fused attention keeps its output already.
        output = 0 if self.setting.on_gpu else shape.heads * shape.head_size
        return low + size * (2 * shape.hidden + shape.intermediate + output)

    @property
    def mask(self) -> int:
        """Which token sees which, for all layers: a boolean on a GPU, a number to add on a CPU."""
        pairs = self.rows * self.load.tokens**2
        if self.setting.on_gpu:
            # A single text has no padding, hence no mask, unless it was drawn.
            return 0 if self.rows == 1 and not self.kind.pads else pairs
        return pairs * self.setting.number_bytes

    @property
    def _layer_mask(self) -> int:
        """Fused attention turns a boolean mask into numbers, in each layer anew; without padding there is no mask."""
        return self.mask * self.setting.number_bytes if self.setting.on_gpu else 0

    @property
    def logits(self) -> int:
        """Of the tokens of responses; the reward model has none."""
        shape, tokens = self.shape, self.rows * self.load.response_tokens
        if self.kind.language_head == "none":
            return 0
        if self.kind.language_head == "compute" and self.setting.on_gpu:
            hidden = tokens * shape.hidden * (FP32 + 2 * self.setting.number_bytes)
            return min(tokens, TILE_TOKENS) * TILE_VOCABULARY * self.setting.number_bytes + hidden
        copies = LOGITS_COPIES * FP32 * tokens * shape.vocabulary
        # Weights of another type are copied.
        head = self.kind.language_head == "fp32" and self.setting.number_bytes < FP32
        return copies + head * FP32 * shape.vocabulary * shape.hidden

    @property
    def cache(self) -> int:
        """Keys and values of all layers at the end of drawing responses; 0 where none are drawn here."""
        if not self.kind.draws:
            return 0
        shape = self.shape
        per_token = 2 * shape.layers * shape.key_value_heads * shape.head_size * self.setting.number_bytes
        return self.load.rows_drawn * self.load.tokens * per_token

    @property
    def backward_workspace(self) -> int:
        """What the backward pass of one layer makes and drops again, at its worst moment."""
        shape, size = self.shape, self.setting.number_bytes
        tokens, queries = self.rows * self.load.tokens, shape.heads * shape.head_size
        # The gradient of the feed-forward part's product by its matrix, by its adapter, and their sum; or of the
        # product and of its two factors. An adapter that casts its input casts the gradient, too.
        feed_forward = 3 * size * shape.intermediate
        if self._copies_adapter_inputs and self.setting.lora.targets == "all-linear":
            feed_forward = (FP32 + 2 * size) * shape.intermediate
        # Gradients of queries, keys, values and output, and an fp32 sum. What the feed-forward part kept is free
        # by then.
        attention = (4 * size + FP32) * queries
        if not self.setting.on_gpu:
            # The softmax's gradients in fp32, when the probabilities in the compute's type are free again.
            pairs = shape.heads * self.load.tokens * (2 * FP32 - (size if size < FP32 else 0))
            attention = 4 * size * queries + pairs
        attention -= 3 * size * shape.intermediate + FP32 * shape.hidden
        return tokens * (max(feed_forward, attention) + size * shape.hidden) + self._dequantized

    @property
    def forward_workspace(self) -> int:
        """What one layer makes and drops again without autograd, as in drawing responses."""
        shape, size = self.shape, self.setting.number_bytes
        tokens, queries = self.rows * self.load.tokens, shape.heads * shape.head_size
        feed_forward = 3 * size * shape.intermediate
        attention = 4 * size * queries
        if not self.setting.on_gpu:
            # The softmax's input and output, both in fp32, beside what is turned into fp32.
            pairs = shape.heads * self.load.tokens * (2 * FP32 + (size if size < FP32 else 0))
            attention = 3 * size * queries + pairs
        # Beside them the embeddings, which the model holds to its end, the residual, its norm and the sum.
        workspace = tokens * (max(feed_forward, attention) + 4 * size * shape.hidden) + self._dequantized
        return workspace + self.mask + self._layer_mask

    @property
    def _dequantized(self) -> int:
        """4-bit matrices are unpacked one at a time to be multiplied."""
        largest = max(matrix.parameters for matrix in self.shape.matrices)
        return largest * self.setting.number_bytes if self.setting.quantized else 0

    @property
    def training_peak(self) -> int:
        """The end of the forward pass with the logits, or the first layer that the backward pass comes to."""
        layer = self.saved_by_layer if self.setting.checkpointing else 0
        at_head = self.activations - layer + self.last_norm + self.logits
        return self.held + max(at_head, self.activations + self.backward_workspace)

    @property
    def drawing_peak(self) -> int:
        """The prompts are read at once, then a token at a time; 0 where no responses are drawn here."""
        if not self.kind.draws:
            return 0
        load, shape = self.load, self.shape
        rows = load.rows_drawn
        prompts = replace(self, load=replace(load, micro_batch=rows, tokens=load.tokens - load.response_tokens))
        # At the last token a layer's cache is copied to be longer, and repeated for queries that share keys and values.
        shares = shape.key_value_heads < shape.heads
        repeated = shares * 2 * rows * load.tokens * shape.heads * shape.head_size * self.setting.number_bytes
        last = self.cache + self.cache // shape.layers + repeated
        return self.held + max(prompts.cache + prompts.forward_workspace, last)

    @property
    def peak(self) -> int:
        return max(self.training_peak, self.drawing_peak)

    def with_micro_batch(self, micro_batch: int) -> "StageMemory":
        return replace(self, load=replace(self.load, micro_batch=micro_batch))


def largest_micro_batch(memory: StageMemory, card_bytes: float) -> int:
    """Of those that fit into the usable share of a card, the largest; 0 where one sample does not."""
    fits, fails = 0, 1
    while memory.with_micro_batch(fails).peak <= USABLE_SHARE * card_bytes:
        fits, fails = fails, 2 * fails
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if memory.with_micro_batch(middle).peak <= USABLE_SHARE * card_bytes:
            fits = middle
        else:
            fails = middle
    return fits
