"""Measures of the form of all reflections, for each arm and model and in every environment."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.markdown import code, plain, share, table
from retroformer.records import Reflection, Trajectory
from retroformer.repetition import COPIED_WORDS, RESTATING, DistinctCounter, copied

from ..measure.results import ArmResult
from .structure import read_structure

_NOTE = (
    "Blank reflections are left out. *Distinct-1* and *distinct-2* are shares of distinct words and word pairs in all "
    "reflections of the row; they fall with the amount of text. *Copied* is the mean share of sequences of "
    f"{COPIED_WORDS} words that are also in the last message of the reflector's prompt, or in the attempt if there was "
    f"no prompt; a reflection restates if that share is at least {RESTATING:.0%}. A structured reflection has both "
    "sections of Retroformer's Fig. 7."
)
_HEADER = (
    "arm",
    "written by",
    "reflections",
    "mean words",
    "distinct-1",
    "distinct-2",
    "copied from the attempt",
    "restate the attempt",
    'section "Reflection"',
    'section "New plan"',
    "structured",
)


class _Form:
    """Counts over the reflections of one training seed of an arm."""

    def __init__(self) -> None:
        self._models: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._copied = 0.0
        self._distinct = DistinctCounter(1), DistinctCounter(2)

    def add(self, reflection: Reflection, failure: Trajectory | None) -> None:
        text = reflection.text
        structure, copies = read_structure(text), copied(text, _source(reflection, failure))
        self._models[reflection.author.model] += 1
        self._copied += copies
        for counter in self._distinct:
            counter.add(text)
        self._counts.update(
            reflections=1,
            words=len(text.split()),
            restating=copies >= RESTATING,
            reflection=structure.reflection,
            new_plan=structure.new_plan,
            structured=structure.complete,
        )

    @property
    def wrote(self) -> bool:
        return bool(self._counts["reflections"])

    def row(self) -> list[str]:
        """Return the cells after the arm's name."""
        total = self._counts["reflections"]
        return [
            ", ".join(map(code, sorted(self._models))),
            str(total),
            f"{self._counts['words'] / total:.1f}",
            *(f"{counter.share:.3f}" for counter in self._distinct),
            f"{self._copied / total:.3f}",
            *(share(self._counts[name], total) for name in ("restating", "reflection", "new_plan", "structured")),
        ]


class AdviceTelemetry:
    """Counts over the reflections of every arm, by training seed."""

    def __init__(self, results: Sequence[ArmResult]) -> None:
        self._names = {seed.stored: seed.name for arm in results for seed in arm.seeds}
        self._forms = {stored: _Form() for stored in self._names}

    def add(self, facts: TaskFacts) -> None:
        """Count the reflections on one task."""
        for stored, seed in facts.seeds.items():
            for trial, reflection in seed.reflections.items():
                if reflection.text.strip():
                    self._forms[stored].add(reflection, _failure(seed, trial))

    def render(self) -> str:
        """Render one row for each arm that wrote something; empty if none did."""
        rows = [[plain(self._names[stored]), *form.row()] for stored, form in self._forms.items() if form.wrote]
        return f"{_NOTE}\n\n{table(_HEADER, rows, 'The form of the reflections.')}" if rows else ""


def _failure(seed: SeedFacts, trial: int) -> Trajectory | None:
    """Return the attempt that the advice for this trial is about."""
    return seed.attempts.get(trial - 1)


def _source(reflection: Reflection, failure: Trajectory | None) -> str:
    if reflection.prompt:
        return reflection.prompt[-1].content
    if failure is None:
        return ""
    steps = ((step.thought, step.action, step.observation) for step in failure.steps)
    return "\n".join((failure.opening, *chain.from_iterable(steps)))
