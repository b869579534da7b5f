"""Counts, by arm, of advice that gives away a part of the solution that the agent could not know."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from retroformer.environments.extras import LeakCheck, SeedFacts, TaskFacts
from retroformer.environments.registry import extras
from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.experiment.config import Experiment
from retroformer.markdown import plain, quoted, share, table

from ..measure.results import ArmResult

_EXAMPLES = 3
"""Most examples that are shown of each arm."""
_ADVICE_SHOWN = 200
"""Most characters shown of one piece of advice; the store has all."""
_NOTE = "A reflector that knows the solution from its own training, or guesses right, is counted as well."


class _Example(NamedTuple):
    task_id: str
    given_away: str
    advice: str


class LeakCounter:
    """Counter of the pieces of advice that give something away."""

    def __init__(self, experiment: Experiment, results: Sequence[ArmResult]) -> None:
        offered, environment = extras(experiment.environment), experiment.environment
        self._check: LeakCheck | None = (
            offered.leak_check(environment, experiment.seed) if offered.leak_check is not None else None
        )
        self._yardsticks = {name for name, arm in experiment.eval.arms.items() if arm.reads_solution}
        self._results = results
        self._counts = {arm.name: Counter[str]() for arm in results}
        self._examples: dict[str, list[_Example]] = {arm.name: [] for arm in results}

    def add(self, facts: TaskFacts) -> None:
        """Check the advice about one task."""
        if self._check is None:
            return
        for arm in self._results:
            for stored in arm.stored_names:
                self._add(self._check, arm.name, facts.task_id, facts.seeds[stored])

    def _add(self, check: LeakCheck, name: str, task_id: str, seed: SeedFacts) -> None:
        for trial, reflection in seed.reflections.items():
            attempts = [attempt for number, attempt in sorted(seed.attempts.items()) if number < trial]
            if trial == 0 and 0 in seed.attempts:
                # Before the first attempt, the task's opening is all that advice can have been written from.
                attempts = [seed.attempts[0].model_copy(update={"steps": ()})]
            if not attempts or not reflection.text.strip():
                continue
            self._counts[name]["pieces"] += 1
            try:
                given_away = check.given_away(reflection.text, attempts)
            except (UnknownTask, MissingInput, EnvironmentFailure):
                self._counts[name]["unchecked"] += 1
                continue
            if given_away:
                self._counts[name]["leaks"] += 1
                if len(self._examples[name]) < _EXAMPLES:
                    self._examples[name].append(_Example(task_id, given_away, reflection.text))

    def render(self) -> str:
        """Render the counts and examples; empty if the environment has no check or no arm wrote anything."""
        rows = [[self._title(name), *_cells(counts)] for name, counts in self._counts.items() if counts["pieces"]]
        if self._check is None or not rows:
            return ""
        header = ["arm", "pieces of advice", "could not be checked", "give something away"]
        counted = table(header, rows, "Advice that gives a part of the solution away.")
        examples = [
            [
                plain(name),
                plain(example.task_id),
                quoted(example.given_away, _ADVICE_SHOWN),
                quoted(example.advice, _ADVICE_SHOWN),
            ]
            for name, of_arm in self._examples.items()
            for example in of_arm
        ]
        shown = table(["arm", "task", "given away", "advice"], examples, "Examples of what advice gave away.")
        return "\n\n".join([f"{self._check.rule} {_NOTE}", counted, *[shown] * bool(examples)])

    def _title(self, name: str) -> str:
        return plain(name) + " (reads the solution)" * (name in self._yardsticks)


def _cells(counts: Counter[str]) -> list[str]:
    checked = counts["pieces"] - counts["unchecked"]
    return [str(counts["pieces"]), str(counts["unchecked"]), share(counts["leaks"], checked)]
