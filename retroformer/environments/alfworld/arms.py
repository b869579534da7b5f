"""Arms whose advice is written by rule about household games: from failures, from training attempts, from solutions."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from retroformer.agents.arms.arm import Arm, ArmParts, EarlyArm
from retroformer.config.sections.base import Positive
from retroformer.environments.alfworld.advice_writer import oracle_reflector, rule_reflector
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.alfworld.hindsight import HINDSIGHT_PLACES, table_reflector
from retroformer.environments.section import ArmWording
from retroformer.method.protocols import Reflector
from retroformer.method.records import OMIT_NONE


class RuleArm(Arm):
    """Advice written by rule from the text of the failure."""

    kind: Literal["rule"] = "rule"
    places: Positive = 6
    """Largest number of places that one piece of advice names."""
    wording: ArmWording | None = None
    """Words of the advice; None: environment.wording."""

    def build(self, parts: ArmParts) -> Reflector:
        return rule_reflector(parts.render(), self.wording or _wording(parts), places=self.places)

    def describe(self) -> str:
        return f"written by rule from the text of the failure{_in_words(self.wording)}"


class HistoryRuleArm(Arm):
    """Advice written by rule from the text of all attempts at the task."""

    kind: Literal["history_rule"] = "history_rule"
    places: Positive = 6
    """Largest number of places that one piece of advice names."""

    def build(self, parts: ArmParts) -> Reflector:
        return rule_reflector(parts.render(), _wording(parts), reads_history=True, places=self.places)

    def describe(self) -> str:
        return "written by rule from the text of all attempts so far"


class TableArm(EarlyArm):
    """The places where training attempts most often found such things."""

    kind: Literal["table"] = "table"
    places: Positive = HINDSIGHT_PLACES
    """Largest number of places that one piece of advice names, as many as in hindsight."""
    wording: Annotated[ArmWording | None, OMIT_NONE] = None
    """Words of the advice; None: environment.wording."""
    runs: tuple[str, ...] = ()
    """Names of the runs whose collected attempts are counted; empty: this run."""

    def build(self, parts: ArmParts) -> Reflector:
        attempts = parts.attempts([*self.experience_of(parts.run)])
        return table_reflector(parts.render(), attempts, self.places, self.wording or _wording(parts))

    def conditions(self, parts: ArmParts) -> dict[str, Any]:
        content = hashlib.sha256()
        for attempt in parts.attempts([*self.experience_of(parts.run)]):
            content.update(attempt.model_dump_json(exclude={"usage"}).encode())
        return {"experience_sha256": content.hexdigest()}

    def experience_of(self, run: str) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(self.runs or (run,), ())

    def describe(self) -> str:
        counted = "the places at which training attempts most often found such things, without a model"
        return f"a yardstick: {counted}{_in_words(self.wording)}{self.when}"


class OracleArm(EarlyArm):
    """Advice written by rule from the solution of the task."""

    reads_solution = True

    kind: Literal["oracle"] = "oracle"
    wording: ArmWording | None = None
    """Words of the advice; None: environment.wording."""

    def build(self, parts: ArmParts) -> Reflector:
        return oracle_reflector(parts.render(), parts.taskset().walkthrough, self.wording or _wording(parts))

    def describe(self) -> str:
        words = _in_words(self.wording)
        return f"a yardstick: written by rule from the solution of the task, which no reflector sees{words}{self.when}"


def _wording(parts: ArmParts) -> ArmWording:
    assert isinstance(parts.environment, Alfworld)
    return parts.environment.wording


def _in_words(wording: ArmWording | None) -> str:
    return f", in {wording} words" if wording else ""
