"""What the report counts in whole records, in one pass over the store with one task in memory at a time."""

from collections.abc import Sequence

from eval.account import WrittenExamples
from eval.examples import Shortlist, pick_examples, render_examples
from eval.facts import TaskFacts, facts_by_task
from eval.failures import AttemptGroups
from eval.findings import Findings
from eval.lesson import Attempted, Lesson, Reading, lessons_of, read_attempt, read_lesson
from eval.outcome import ArmOutcome
from eval.telemetry import HabitCounter, TelemetryCounter, render_habits, render_telemetry
from retroformer.arms import first_trial
from retroformer.environments.sections import Alfworld
from retroformer.records import Outcome, Trajectory


class Advice:
    """What was advised in ALFWorld, held against what the failures had shown; and examples of it."""

    def __init__(self, outcomes: Sequence[ArmOutcome], examples: tuple[str, str] | None) -> None:
        self._outcomes = outcomes
        self._telemetry = {arm.name: TelemetryCounter(arm.name) for arm in outcomes}
        self._habits = HabitCounter([arm.name for arm in outcomes])
        self._examples = examples
        self._shortlist = Shortlist()

    def add(self, facts: TaskFacts) -> None:
        """Count what was written about one task."""
        attempted: dict[int, Attempted] = {}

        def read(attempt: Trajectory) -> Attempted:
            if id(attempt) not in attempted:
                attempted[id(attempt)] = read_attempt(attempt)
            return attempted[id(attempt)]

        written: dict[str, list[tuple[Lesson, Reading]]] = {arm.name: [] for arm in self._outcomes}
        for arm in self._outcomes:
            for seed in arm.seeds:
                lessons = lessons_of(facts.seeds[seed.stored])
                written[arm.name] += [(lesson, read_lesson(lesson, read(lesson.failure))) for lesson in lessons]
            for lesson, reading in written[arm.name]:
                self._telemetry[arm.name].add(lesson, reading)
        attempts = {id(one): one for seed in facts.seeds.values() for one in seed.attempts.values()}
        successes = [one for one in attempts.values() if one.outcome is Outcome.SUCCESS]
        self._habits.add(written, [(one, read(one)) for one in successes])
        self._shortlist_examples(facts)

    @property
    def telemetry(self) -> str:
        return render_telemetry([counter.telemetry for counter in self._telemetry.values()])

    @property
    def habits(self) -> str:
        """Empty where nothing failed."""
        return render_habits(self._habits.habits)

    @property
    def examples(self) -> str:
        """The same failures and two advisers; empty where the page names none."""
        return render_examples(self._shortlist.examples, *self._examples) if self._examples else ""

    def _shortlist_examples(self, facts: TaskFacts) -> None:
        if self._examples is None:
            return
        first_seeds = {arm.name: facts.seeds[arm.seeds[0].stored] for arm in self._outcomes}
        before, after = (lessons_of(first_seeds[name]) for name in self._examples)
        for example in pick_examples(before, after):
            self._shortlist.add(example)


class Observations:
    """All counts over attempts and reflections."""

    def __init__(self, findings: Findings) -> None:
        experiment, outcomes = findings.experiment, findings.outcomes
        self.groups = AttemptGroups(outcomes)
        self.written = WrittenExamples(outcomes)
        alfworld = isinstance(experiment.environment, Alfworld)
        self.advice = Advice(outcomes, experiment.eval.examples) if alfworld else None


def observe(findings: Findings) -> Observations:
    """Read the facts of all arms once."""
    observations = Observations(findings)
    stored = [seed.stored for arm in findings.outcomes for seed in arm.seeds]
    for facts in facts_by_task(findings.store, first_trial(findings.actor), stored):
        observations.groups.add(facts)
        observations.written.add(facts)
        if observations.advice is not None:
            observations.advice.add(facts)
    return observations
