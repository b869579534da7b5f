"""Refuses a stage that would not fit into the memory of a CPU, before the base model is loaded.

On a GPU an allocation that does not fit ends with an error of its own. On a CPU the kernel kills some process.
"""

import os

from retroformer.available_memory import available_memory
from retroformer.errors import ConfigError

from .base import CPU, device
from .plan.estimate import case_of, estimate
from .plan.fit import fit
from .plan.shape import read_config, shape_of
from .stage import Stage
from .stage_kinds import STAGES, stages_of

GIB = 1024**3
GROWTH = 1.3
"""Growth of a process for each byte of its tensors. It was 1.21 to 1.45 in the runs of docs/results/memory.md, most at
the smallest ones, to which the code of the libraries adds a hundred MiB or more."""


def require_room(stage: Stage, tokens: int) -> None:
    """Check that a stage whose longest sample has `tokens` tokens fits into the memory of a CPU.

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
    room = available / GROWTH / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if (peak := estimate(case).peak) <= room:
        return
    settings = " ".join(fit(case, room)[1])
    raise ConfigError(
        f"`train {stage.name}` would take about {GROWTH * peak / GIB:.1f} GiB on this CPU with micro-batches of "
        f"{case.read_at_once} tokens and samples of up to {tokens}, and {GROWTH * room / GIB:.1f} GiB are available: "
        + (f"set {settings}, " if settings else "take a smaller train.base_model, ")
        + "or train on a GPU (`retroformer train plan EXPERIMENT.yaml` shows what fits)."
    )
