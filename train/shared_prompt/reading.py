"""Runs a model over packed groups, and computes the log-probabilities of responses."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.weak import WeakTensorKeyDictionary

from retroformer.errors import ConfigError
from retroformer.models.loading import longest_row

from .attention import FLEX, QUICK, SPLIT
from .packed import Packed

SEPARATE_ROWS = (
    "set train.trainer=trl for warm, sft, reward and dpo, and take another train.base_model for ppo and grpo"
)
"""What to do about a model that cannot read packed rows, for messages."""
CHANGED_LOGITS = "set train.trainer=trl for warm, sft and reward, and take another train.base_model for other stages"
"""What to do about a model that changes its logits, for messages."""
TOKEN_CHUNK, VOCABULARY_CHUNK = 128, 4_096
"""Tokens and entries of the vocabulary whose logits are in memory at once: 2 MB. A larger part of the head, in fp32, is
mapped and unmapped by the allocator each time, which costs a fifth of the head's time or more on a CPU."""


class TokenReadings(NamedTuple):
    """Log-probabilities of the N tokens of all responses, and entropies of the distributions at their positions."""

    log_probs_N: Tensor
    entropies_N: Tensor
    """Empty if gradients are needed: no loss uses entropies."""


def hidden_states(trunk: Any, packed: Packed) -> Tensor:
    """Return the last hidden states of a model without its head, (B, L, H).

    Raises:
        ConfigError: the model's layers see fewer tokens than a prompt with a response has.
    """
    if packed.longest > (longest := longest_row(trunk.config)):
        raise ConfigError(
            f"A prompt with its response has {packed.longest} tokens, and packed rows of this base model have at most "
            f"{longest} (its sliding window, chunk or longrope): {SEPARATE_ROWS}, or lower train.max_length and "
            "reflector.prompt_characters."
        )
    attention = trunk.config._attn_implementation
    mask: Any
    if attention == FLEX:
        packed = packed.in_blocks
        mask = packed.block_mask()
    else:
        mask = packed.dense_mask(trunk.dtype, packed.shortest_prompt if attention in (SPLIT, QUICK) else 0)
    with computing(trunk):
        read = trunk(input_ids=packed.ids_BL, attention_mask=mask, position_ids=packed.positions_BL, use_cache=False)
    hidden_BLH: Tensor = read.last_hidden_state
    return hidden_BLH


def trunk_of(model: Any) -> Any:
    """Return the layers of an adapted model, without its head."""
    return model.get_base_model().base_model


def plain_states(trunk: Any, packed: Packed) -> Tensor:
    """Return the last hidden states of one row with one response, read from first to last as any library does."""
    with computing(trunk):
        hidden_BLH: Tensor = trunk(input_ids=packed.ids_BL, use_cache=False).last_hidden_state
    return hidden_BLH


def computing(trunk: Any) -> AbstractContextManager[Any]:
    """Return the autocast context of a model: bf16 if its base is bf16, even though its adapters are fp32."""
    if trunk.dtype != torch.bfloat16:
        return nullcontext()
    return torch.autocast(trunk.device.type, torch.bfloat16)


def predicting(hidden_BLH: Tensor, packed: Packed) -> Tensor:
    """Return the hidden states that predict the tokens of all responses, in fp32, (N, H)."""
    return hidden_BLH[packed.row_N, packed.source_N].float()


def token_readings(hidden_NH: Tensor, packed: Packed, head: Any) -> TokenReadings:
    """Return the log-probabilities of the responses' tokens, with the language head run only where one is predicted.

    In fp32, since bf16 logits are off by a tenth and add noise of 0.2 to ratios of probabilities. The head is frozen.
    """
    trains = hidden_NH.requires_grad and torch.is_grad_enabled()
    return TokenReadings(*_ChosenLogProbs.apply(hidden_NH, head.weight, packed.token_N, trains))  # type: ignore[no-untyped-call]


def response_readings(model: Any, hidden_BLH: Tensor, packed: Packed) -> TokenReadings:
    """Return the log-probabilities of the responses' tokens under an adapted model, from its hidden states."""
    head = model.get_base_model().get_output_embeddings()
    return token_readings(predicting(hidden_BLH, packed), packed, head)


class _ChosenLogProbs(torch.autograd.Function):
    """The log-probability of a token at each hidden state, with a part of the head and a part of the tokens at a time.

    The softmax over the vocabulary is accumulated as attention over keys is, so the head is never copied as a whole
    and no logits are kept. The gradient W[token] - sum_v p_v W[v] is accumulated with it.
    """

    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, token_N: Tensor, trains: bool) -> tuple[Tensor, Tensor]:
        highest_N = hidden_NH.new_full(token_N.shape, -math.inf)
        total_N = torch.zeros_like(highest_N)
        # Sum of exp(logit) times the weights for the gradient, else times the logit for the entropy.
        weighted = torch.zeros_like(hidden_NH if trains else highest_N)
        for first in range(0, len(weight_VH), VOCABULARY_CHUNK):
            weight_WH = weight_VH[first : first + VOCABULARY_CHUNK].float()
            for start in range(0, len(token_N), TOKEN_CHUNK):
                part = slice(start, start + TOKEN_CHUNK)
                logits_CW = linear(hidden_NH[part], weight_WH)
                highest_C = highest_N[part].maximum(logits_CW.amax(dim=1))
                kept_C = (highest_N[part] - highest_C).exp()
                shares_CW = (logits_CW - highest_C[:, None]).exp_()
                highest_N[part] = highest_C
                total_N[part] = total_N[part] * kept_C + shares_CW.sum(dim=1)
                if trains:
                    weighted[part] = weighted[part] * kept_C[:, None] + shares_CW @ weight_WH
                else:
                    weighted[part] = weighted[part] * kept_C + shares_CW.mul_(logits_CW).sum(dim=1)
        chosen_NH, log_total_N = weight_VH[token_N].float(), highest_N + total_N.log()
        log_probs_N = (hidden_NH * chosen_NH).sum(dim=1) - log_total_N
        entropies_N = hidden_NH.new_empty(0) if trains else log_total_N - weighted / total_N
        ctx.mark_non_differentiable(entropies_N)
        if trains:
            ctx.save_for_backward(chosen_NH - weighted / total_N[:, None])
        return log_probs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (gradients_NH,) = ctx.saved_tensors
        return grad_N[:, None] * gradients_NH, None, None, None


class LayersBelow:
    """The layers of `trunk` below the first adapter, which read packed rows once for all adapters and passes.

    No adapter changes these layers, and nothing in them is trained. With LoRA on the upper half of the layers they are
    half of a pass. What leaves them is kept as long as the rows are.
    """

    def __init__(self, trunk: nn.Module) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        layers: Any = next((part for part in trunk.children() if isinstance(part, nn.ModuleList)), [])
        adapted = (any(isinstance(part, BaseTunerLayer) for part in layer.modules()) for layer in layers)
        count = next((number for number, is_adapted in enumerate(adapted) if is_adapted), 0)
        self._rows: Tensor | None = None
        self._known = WeakTensorKeyDictionary()
        for layer in layers[:count]:
            layer.forward = self._once(layer.forward, keeps=layer is layers[count - 1])

    @contextmanager
    def reading(self, packed: Packed) -> Iterator[None]:
        """Skip these layers while the trunk reads rows that it has read before."""
        self._rows = packed.ids_BL
        try:
            yield
        finally:
            self._rows = None

    def _once(self, forward: Callable[..., Any], *, keeps: bool) -> Callable[..., Any]:
        @torch.no_grad()
        def forward_once(hidden_BLH: Tensor, *arguments: Any, **options: Any) -> Any:
            rows = self._rows
            if rows is not None and rows in self._known:
                return self._known[rows] if keeps else hidden_BLH
            read = forward(hidden_BLH, *arguments, **options)
            if keeps and rows is not None and isinstance(read, Tensor):  # Of some models it is a tuple.
                self._known[rows] = read
            return read

        return forward_once
