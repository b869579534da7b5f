"""Arms whose advice is written by rule about household games: from failures, from training attempts, from solutions."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from retroformer.agents.arms.arm import Arm, ArmParts, EarlyArm
from retroformer.config.sections.base import Positive
from retroformer.environments.alfworld.advice_writer import oracle_reflector, rule_reflector
from retroformer.environments.alfworld.hindsight import HINDSIGHT_PLACES, table_reflector
from retroformer.environments.extras import Wording
from retroformer.method.protocols import Reflector


class RuleArm(Arm):
    """Advice written by rule from the text of the failure."""

    kind: Literal["rule"] = "rule"
    places: Positive = 6
    """Largest number of places that one piece of advice names."""
    wording: Wording = "demonstrated"
    """Sentences of the advice. demonstrated: those that the household actor was trained with; unseen: others."""

    def build(self, parts: ArmParts) -> Reflector:
        return rule_reflector(parts.render(), self.wording, places=self.places)

    def describe(self) -> str:
        words = ", in words that no demonstration used" if self.wording == "unseen" else ""
        return f"written by rule from the text of the failure{words}"


class HistoryRuleArm(Arm):
    """Advice written by rule from the text of all attempts at the task."""

    kind: Literal["history_rule"] = "history_rule"
    places: Positive = 6
    """Largest number of places that one piece of advice names."""

    def build(self, parts: ArmParts) -> Reflector:
        return rule_reflector(parts.render(), reads_history=True, places=self.places)

    def describe(self) -> str:
        return "written by rule from the text of all attempts so far"


class TableArm(EarlyArm):
    """The places where training attempts most often found such things."""

    kind: Literal["table"] = "table"
    places: Positive = HINDSIGHT_PLACES
    """Largest number of places that one piece of advice names, as many as in hindsight."""
    runs: tuple[str, ...] = ()
    """Names of the runs whose collected attempts are counted; empty: this run."""

    def build(self, parts: ArmParts) -> Reflector:
        attempts = parts.attempts([*self.experience_of(parts.run)])
        return table_reflector(parts.render(), attempts, self.places)

    def conditions(self, parts: ArmParts) -> dict[str, Any]:
        content = hashlib.sha256()
        for attempt in parts.attempts([*self.experience_of(parts.run)]):
            content.update(attempt.model_dump_json(exclude={"usage"}).encode())
        return {"experience_sha256": content.hexdigest()}

    def experience_of(self, run: str) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(self.runs or (run,), ())

    def describe(self) -> str:
        counted = "the places at which training attempts most often found such things, without a model"
        return f"a yardstick: {counted}{self.when}"


class OracleArm(EarlyArm):
    """Advice written by rule from the solution of the task."""

    reads_solution = True

    kind: Literal["oracle"] = "oracle"

    def build(self, parts: ArmParts) -> Reflector:
        return oracle_reflector(parts.render(), parts.taskset().walkthrough)

    def describe(self) -> str:
        return f"a yardstick: written by rule from the solution of the task, which no reflector sees{self.when}"
