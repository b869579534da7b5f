"""How often a placebo gave advice outside of its `eval.arms.NAME.among`, because there was none within."""

from collections import Counter
from collections.abc import Sequence

from retroformer.agents.baseline import UNSUITABLE, PlaceboArm
from retroformer.environments.extras import TaskFacts
from retroformer.experiment.config import Experiment

from ..measure.results import ArmResult


class PlaceboAdvice:
    """Counts how often a placebo that is limited by `among` had to give other advice."""

    def __init__(self, experiment: Experiment, results: Sequence[ArmResult]) -> None:
        arms = experiment.eval.arms.items()
        limited = {name for name, arm in arms if isinstance(arm, PlaceboArm) and arm.among != "any"}
        self._names = {seed.stored: arm.name for arm in results for seed in arm.seeds if arm.name in limited}
        self._given, self._unsuitable = Counter[str](), Counter[str]()

    def add(self, facts: TaskFacts) -> None:
        """Count the advice on one task."""
        for stored, name in self._names.items():
            for reflection in facts.seeds[stored].reflections.values():
                self._given[name] += 1
                self._unsuitable[name] += reflection.author.endpoint == UNSUITABLE

    def note_on(self, name: str) -> str:
        """Return the counts of an arm in parentheses; empty for any other arm."""
        if name not in self._given:
            return ""
        count = f"{self._unsuitable[name]} of {self._given[name]} retries"
        return f" (in {count} there was none, so it gave advice about any other task)"
