"""Names of the arms of an experiment in the store."""

COLLECT = "collect"
"""Sampled reflections, each tried and rated; a second round is `collect 2`."""

WRITTEN = "written"
"""Advice written by rule for the warm start; not rated."""

LIVE = "grpo"
"""What the policy wrote while it was trained on live returns, and how each was rated; no text to imitate."""

RECORDED = "recorded"
"""Imported logs; a second log that contradicts the first is `recorded 2`."""

PROBES = "eval/probes"
"""Calls that asked served models who they are; an account without facts."""

FIRST_TRIAL = "eval/trial 0"
"""Trial 0 of the evaluation, which its arms share; of several actors each has its own."""


def evaluation(arm: str, model: str = "") -> str:
    """The name in the store of an arm of the report, or of one of the models that it pools."""
    return f"eval/{arm}/{model}" if model else f"eval/{arm}"


def first_trial(actor: str = "") -> str:
    """The name in the store of what all arms of an actor share."""
    return evaluation(actor, "trial 0") if actor else FIRST_TRIAL


def collecting(number: int) -> str:
    """The name in the store of a round of collecting, the first being 1."""
    return COLLECT if number == 1 else f"{COLLECT} {number}"


def is_rated(arm: str, rounds: int | None = None) -> bool:
    """Whether the reflections of this arm are there to train on by their ratings (in the first `rounds` rounds)."""
    kind, _, number = arm.partition(" ")
    return kind == RECORDED or (kind == COLLECT and (rounds is None or int(number or 1) <= rounds))


def is_for_training(arm: str) -> bool:
    """Whether tasks of this arm must not be evaluated on."""
    return is_rated(arm) or arm in (WRITTEN, LIVE)
