"""Report chapter about advice in ALFWorld, compared with what the failures had shown."""

from collections.abc import Iterator, Sequence

from retroformer.document import Chapter, chapter
from retroformer.environments.alfworld.report.reflection import (
    Attempted,
    Reading,
    ReflectionCase,
    read_attempt,
    read_reflection,
    reflection_cases,
)
from retroformer.environments.alfworld.report.telemetry import (
    HABITS_NOTE,
    HabitCounter,
    TelemetryCounter,
    habits_table,
    telemetry_tables,
)
from retroformer.environments.extras import ReportedArm, TaskFacts
from retroformer.records import Outcome, Trajectory


class AdviceChapter:
    """Chapter that compares the advice in ALFWorld with what the failures had shown."""

    def __init__(self, arms: Sequence[ReportedArm]) -> None:
        self._arms = arms
        self._telemetry = {arm.name: TelemetryCounter(arm.name) for arm in arms}
        self._habits = HabitCounter([arm.name for arm in arms])

    def add(self, facts: TaskFacts) -> None:
        """Count what the arms wrote about one task."""
        attempted: dict[int, Attempted] = {}

        def read(attempt: Trajectory) -> Attempted:
            if id(attempt) not in attempted:
                attempted[id(attempt)] = read_attempt(attempt)
            return attempted[id(attempt)]

        written: dict[str, list[tuple[ReflectionCase, Reading]]] = {arm.name: [] for arm in self._arms}
        for arm in self._arms:
            for stored in arm.stored_names:
                cases = reflection_cases(facts.seeds[stored])
                written[arm.name] += [(case, read_reflection(case, read(case.failure))) for case in cases]
            for case, reading in written[arm.name]:
                self._telemetry[arm.name].add(case, reading)
        attempts = {id(attempt): attempt for seed in facts.seeds.values() for attempt in seed.attempts.values()}
        successes = [attempt for attempt in attempts.values() if attempt.outcome is Outcome.SUCCESS]
        self._habits.add(written, [(attempt, read(attempt)) for attempt in successes])

    def chapters(self) -> Iterator[Chapter]:
        """Yield a chapter on the advice, and one on where it sends the actor."""
        if tables := telemetry_tables([counter.telemetry for counter in self._telemetry.values()]):
            yield chapter("What the advice was like", *tables)
        if habits := self._habits.habits:
            yield chapter("Where the arms send to, and where things were found", HABITS_NOTE, habits_table(habits))
