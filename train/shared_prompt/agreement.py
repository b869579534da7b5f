"""Checks, on the first batch of a stage, that packed rows give the same result as separate rows.

Otherwise a model whose attention ignores the mask, or whose positions do not restart, would silently train on wrong
inputs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from retroformer.errors import ConfigError

from .attention import QUICK, SPLIT
from .packed import Group, Packed, pack
from .reading import CHANGED_LOGITS, SEPARATE_ROWS, hidden_states, plain_states, predicting

Values = Callable[[Tensor, Packed], Tensor]
"""Computes what a stage trains on from the hidden states of packed groups: a value for each token, or each response."""
_Read = Callable[[Any, Packed], Tensor]
"""Runs a model without its head over packed groups, and returns the hidden states, (B, L, H)."""
LIMIT = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Norm of the difference, relative to that of separate rows. Rounding gave up to 2e-6 in fp32 and 4e-2 in bf16 with
fresh adapters (`python benchmarks/agreement.py`). Positions that do not restart gave 0.25 in hidden states and 0.38 in
gradients; responses that see each other gave 0.47 and 0.85."""
SCALES = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)
"""Entries of a model's config that change attention scores or logits, as in Gemma 2, Cohere and Granite."""
MORE_ROUNDING = 3
"""Factor by which one row may round more than separate rows do. It rounded up to 1.6 times as much."""
CHECKED = 3
"""Responses of a group in the check, each of which is also read alone."""


def choose_attention(trunk: Any, values: Values, groups: Sequence[Group], *, quick: bool = False) -> None:
    """Choose the attention that reads packed groups, and check it on a group with several responses.

    It is that of the loaded base, but with `quick`, a CPU computes short rows in bf16 by plain attention. Without it, a
    policy gives a response the same log-probability with and without gradients, so that the first ratios of an update
    are exactly 1.

    Raises:
        ConfigError: the model does not read the group as it reads separate rows, or changes its logits.
    """
    require_plain_logits(trunk.config, CHANGED_LOGITS)
    group = max(map(_few_responses, groups), key=lambda group: (len(group.responses), -group.length))
    if quick and trunk.config._attn_implementation == SPLIT:
        trunk.config._attn_implementation = QUICK
    require_agreement(trunk, values, group)


def require_plain_logits(config: Any, advice: str) -> None:
    """Raise ConfigError, with `advice`, if a model does more to logits than `token_readings` and fused attention do."""
    for name in SCALES:
        if (scale := getattr(config, name, None)) not in (None, 1.0):
            raise ConfigError(
                f"The base model changes its attention scores or logits ({name}={scale} in its config.json), which "
                f"our own code does not: {advice}."
            )


def _few_responses(group: Group) -> Group:
    """Return a group with its first distinct responses: enough for one to have others before and after it."""
    return Group(group.prompt, [list(response) for response in dict.fromkeys(map(tuple, group.responses))][:CHECKED])


@contextmanager
def dense_attention(trunk: Any) -> Iterator[None]:
    """Use attention with a dense mask, for generation, whose lengths change with every token."""
    settled = trunk.config._attn_implementation
    trunk.config._attn_implementation = QUICK
    try:
        yield
    finally:
        trunk.config._attn_implementation = settled


def require_agreement(trunk: Any, values: Values, group: Group) -> None:
    """Compare a group in one row with each response in a row of its own.

    In half precision, the gradient of an adapter that gives the responses almost all probability is mostly rounding. So
    where it differs by more than the limit, rounding is measured, too. Hidden states always keep to the limit.

    Raises:
        ConfigError: they differ by more than rounding explains.
    """
    limit, measured = LIMIT.get(trunk.dtype, 0.1), differences(trunk, values, group)
    allowed = dict.fromkeys(measured, limit)
    if measured["gradient"] > limit and trunk.dtype != torch.float32:
        # A causal mask changes only the rounding of separate rows.
        rounding = _compared(trunk, values, group.alone, group.alone)["gradient"]
        allowed["gradient"] = max(limit, MORE_ROUNDING * rounding)
    for what, difference in measured.items():
        # NaN compares as False here; the stage's own checks report it with the name of the tensor.
        if difference > allowed[what]:
            raise ConfigError(
                f"The base model does not read a prompt with several responses in one row as it reads separate rows: "
                f"the relative difference of the {what} is {difference:.2g}, and rounding explains at most "
                f"{allowed[what]:.2g}. Its layers ignore the mask or the positions: {SEPARATE_ROWS}."
            )


def differences(trunk: Any, values: Values, group: Group) -> dict[str, float]:
    """Return how far one row differs from a row for each response without a mask.

    Compared are the hidden states that predict the tokens of responses or end them, and the gradient of `values`. The
    values themselves say less: the scores of a fresh head are sums near 0, in which rounding may be everything.
    """
    return _compared(trunk, values, [group], group.alone)


def _compared(trunk: Any, values: Values, masked: Sequence[Group], plain: Sequence[Group]) -> dict[str, float]:
    with _no_dropout(trunk):
        masked_reading = _reading(trunk, values, masked, hidden_states)
        plain_reading = _reading(trunk, values, plain, plain_states)
    pairs = zip(("hidden states", "gradient"), masked_reading, plain_reading, strict=True)
    return {what: _relative_difference(masked, plain) for what, masked, plain in pairs}


def _reading(trunk: Any, values: Values, rows: Sequence[Group], read: _Read) -> tuple[list[Tensor], list[Tensor]]:
    """Return hidden states of rows one after another, (N, H) and (R, H), and the sum of the rows' gradients.

    They are the hidden states that predict the tokens of responses, and those at the ends of responses.
    """
    states, gradients = list[list[Tensor]](), list[list[Tensor]]()
    # One by one, so that the memory is that of one row.
    for row in rows:
        packed = pack([row]).to(trunk.device)
        hidden_BLH = read(trunk, packed)
        gradients.append(_gradient(values(hidden_BLH, packed), trunk))
        hidden_BLH = hidden_BLH.detach()
        states.append([predicting(hidden_BLH, packed), hidden_BLH[packed.row_R, packed.last_R].float()])
        del hidden_BLH
    concatenated = [torch.cat(parts) for parts in zip(*states, strict=True)]
    return concatenated, [torch.stack(parts).sum(dim=0) for parts in zip(*gradients, strict=True)]


def _relative_difference(masked_reading: Sequence[Tensor], plain_reading: Sequence[Tensor]) -> float:
    pairs = list(zip(masked_reading, plain_reading, strict=True))
    squares = sum(float((mine.float() - other.float()).square().sum()) for mine, other in pairs)
    scale = sum(float(other.float().square().sum()) for _, other in pairs)
    return (squares / scale) ** 0.5 if scale else float(squares > 0)


def _gradient(values: Tensor, trunk: Any) -> list[Tensor]:
    """Return the gradient of the sum of `values` by the trained parameters that they depend on; none in a probe."""
    parameters = [parameter for parameter in trunk.parameters() if parameter.requires_grad]
    if not parameters:
        return []
    gradient = torch.autograd.grad(values.sum(), parameters, allow_unused=True)
    return [part for part in gradient if part is not None]


@contextmanager
def _no_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off: packed rows apply it to the prompt once, separate rows once per response."""
    rates = {module: module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    try:
        for module in rates:
            module.p = 0.0
        yield
    finally:
        for module, rate in rates.items():
            module.p = rate
