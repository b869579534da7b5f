"""Names of an experiment's arms in the store."""

import re

COLLECT = "collect"
"""Arm of sampled reflections, each tried and rated; the second round is `collect 2`."""

WRITTEN = "written"
"""Arm of advice written by rule for the warm start; it is not rated."""

UNADVISED = "unadvised"
"""Arm of an agent's tasks that are retried without advice while it runs, which measures luck."""

LIVE = "grpo"
"""Arm of the policy's reflections while it is trained on live returns, with their ratings; they are not imitated."""

DOCUMENT = "document"
"""Arm of retries with the candidates of a document that is being optimised for all tasks."""

RECORDED = "recorded"
"""Arm of imported logs; a second log that contradicts the first is `recorded 2`."""

PROBES = "eval/probes"
"""Account, without facts, of the calls that identify served models."""

FIRST_TRIAL = "eval/trial 0"
"""Arm of trial 0 of the evaluation, which the other arms share; with several actors, each has its own."""

GATE_FIRST_TRIAL = "gate/trial 0"
"""Arm of the first attempts at the tasks of the gate, which both advisers retry."""

_VERSION = re.compile(r"@[0-9a-f]{12}$")


def gate_arm(adviser: str) -> str:
    """Return the name in the store of an adviser's retries in the gate."""
    return f"gate/{adviser}"


def is_gate_arm(arm: str) -> bool:
    """Return True if the arm was played to decide about a promotion."""
    return arm.startswith("gate/")


def eval_arm(arm: str, model: str = "") -> str:
    """Return the name in the store of a report's arm, or of one of the models that it pools."""
    return f"eval/{arm}/{model}" if model else f"eval/{arm}"


def version_of(arm: str, sha256: str) -> str:
    """Return the name in the store of an arm whose adapter was trained again since it was played."""
    return f"{arm}@{sha256[:12]}"


def without_version(arm: str) -> str:
    """Return the name that all versions of an arm share; an `@` in the arm's own name stays."""
    return _VERSION.sub("", arm)


def first_trial(actor: str = "", prompts: str | None = None) -> str:
    """Return the name in the store of the trial 0 that all arms of an actor share, or all those with these prompts."""
    owner = [*([actor] if actor else []), *([f"prompts {prompts}"] if prompts is not None else [])]
    return own_first_trial("/".join(("eval", *owner)))


def own_first_trial(arm: str) -> str:
    """Return the name in the store of the trial 0 of an arm that has its own."""
    return f"{arm}/trial 0"


def collect_arm(number: int) -> str:
    """Return the name in the store of a collecting round; the first round is 1."""
    return COLLECT if number == 1 else f"{COLLECT} {number}"


def is_rated(arm: str, rounds: range | None = None) -> bool:
    """Return True if the rated reflections of this arm are training data (of these rounds; imported logs are of 1)."""
    kind, _, number = arm.partition(" ")
    if kind == COLLECT:
        return rounds is None or int(number or 1) in rounds
    return kind == RECORDED and (rounds is None or 1 in rounds)


def is_for_training(arm: str) -> bool:
    """Return True if the tasks of this arm must not be used for evaluation."""
    return is_rated(arm) or arm in (WRITTEN, LIVE, DOCUMENT)
