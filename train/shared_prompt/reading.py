"""Runs a model over packed groups, and computes the log-probabilities of responses."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from retroformer.errors import ConfigError

from .attention import SPLIT
from .packed import Packed

FLEX = "flex_attention"
"""transformers' name of the attention that takes a block mask."""
AT_ONCE = 128
"""Tokens whose logits are in memory at once: 25 MB for a vocabulary of 50,000."""


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
    window = _window(trunk.config)
    if window is not None and packed.longest > window:
        raise ConfigError(
            f"A prompt with its response has {packed.longest} tokens, and layers of the base model see only {window} "
            "(its sliding window), which training does not support: lower train.max_length and "
            "reflector.prompt_characters, or take another train.base_model."
        )
    attention = trunk.config._attn_implementation
    first = packed.shortest_prompt if attention == SPLIT else 0
    mask = packed.block_mask() if attention == FLEX else packed.dense_mask(trunk.dtype, first)
    with computing(trunk):
        read = trunk(input_ids=packed.ids_BL, attention_mask=mask, position_ids=packed.positions_BL, use_cache=False)
    hidden_BLH: Tensor = read.last_hidden_state
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
    return TokenReadings(*_ChosenLogProbs.apply(hidden_NH, head.weight.float(), packed.token_N, trains))  # type: ignore[no-untyped-call]


class _ChosenLogProbs(torch.autograd.Function):
    """The log-probability of a token at each hidden state, in chunks.

    The gradient W[token] - sum_v p_v W[v] is computed with the log-probability, so no logits are kept for it.
    """

    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, token_N: Tensor, trains: bool) -> tuple[Tensor, Tensor]:
        log_probs, entropies, gradients = list[Tensor](), list[Tensor](), list[Tensor]()
        for first in range(0, len(token_N), AT_ONCE):
            hidden_CH, token_C = hidden_NH[first : first + AT_ONCE], token_N[first : first + AT_ONCE]
            log_probs_CV = linear(hidden_CH, weight_VH).log_softmax(dim=-1)
            log_probs.append(log_probs_CV.gather(1, token_C[:, None])[:, 0])
            if trains:
                gradients.append(weight_VH[token_C] - log_probs_CV.exp_() @ weight_VH)
            else:
                entropies.append(-(log_probs_CV.exp() * log_probs_CV).sum(dim=-1))
        entropies_N = torch.cat(entropies) if entropies else hidden_NH.new_empty(0)
        ctx.mark_non_differentiable(entropies_N)
        if trains:
            ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(log_probs), entropies_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (gradients_NH,) = ctx.saved_tensors
        return grad_N[:, None] * gradients_NH, None, None, None


def _window(config: Any) -> int | None:
    """Return the smallest sliding window of the model's layers, in tokens; None if all attend to everything."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and not any("sliding" in kind for kind in kinds):
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window
