"""Counts over whole records, made in one pass over the store with few tasks in memory at a time."""

from retroformer.arm_names import first_trial
from retroformer.environments.registry import extras

from ..measure.records import facts_by_task
from .actions import ActionsByTrial, ActionsOfTasks
from .endings import AttemptGroups
from .equal_budget import EqualBudget
from .examples import Examples
from .failure_classes import ClassesByTrial
from .input import ReportInput
from .leaks import LeakCounter
from .placebos import PlaceboAdvice
from .retrieved import RetrievedAdvice
from .telemetry import AdviceTelemetry


class Observations:
    """Counts over attempts and reflections that the report shows."""

    def __init__(self, report_input: ReportInput) -> None:
        experiment, results = report_input.experiment, report_input.results
        self.groups = AttemptGroups(results)
        self.classes = ClassesByTrial(results)
        self.actions = ActionsByTrial(results)
        self.tasks = ActionsOfTasks(report_input.tasks, results)
        self.telemetry = AdviceTelemetry(results)
        self.leaks = LeakCounter(experiment, results)
        self.written = Examples(results, experiment.eval.examples)
        self.budget = EqualBudget(results, last_counts=experiment.evaluator.last_counts)
        self.retrieved = RetrievedAdvice(report_input)
        self.placebos = PlaceboAdvice(experiment, results)
        chapter = extras(experiment.environment).chapter
        self.chapter = chapter(results) if chapter else None


def observe(report_input: ReportInput) -> Observations:
    """Count the facts of all arms in one pass."""
    observations = Observations(report_input)
    firsts = {seed.stored: seed.first_trial for arm in report_input.results for seed in arm.seeds}
    for facts in facts_by_task(report_input.store, first_trial(report_input.name), list(firsts), firsts):
        observations.groups.add(facts)
        observations.classes.add(facts)
        observations.actions.add(facts)
        observations.tasks.add(facts)
        observations.telemetry.add(facts)
        observations.leaks.add(facts)
        observations.written.add(facts)
        observations.budget.add(facts)
        observations.retrieved.add(facts)
        observations.placebos.add(facts)
        if observations.chapter is not None:
            observations.chapter.add(facts)
    return observations
