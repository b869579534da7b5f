"""The problems that a section of the experiment page describes."""

from functools import cached_property
from pathlib import Path

from retroformer.environments.programming.environment import ProgrammingEnvironment
from retroformer.environments.programming.limits import Limits
from retroformer.environments.programming.loading import load, problem_file
from retroformer.environments.programming.problems import ProblemSet
from retroformer.environments.sections import Programming
from retroformer.errors import MissingInput
from retroformer.provenance import files_sha256
from retroformer.records import Task


class ProgrammingTaskset:
    """Problems of one set."""

    def __init__(self, section: Programming) -> None:
        self._section = section

    def tasks(self) -> tuple[Task, ...]:
        """All problems of the set, in its order. Raises MissingInput."""
        split = self._section.split
        return tuple(Task(id=one.id, environment="programming", split=split) for one in self.problem_set.problems)

    def fingerprint(self) -> str:
        """The sha256 of the file of problems. Raises MissingInput."""
        path = problem_file(self._section.split, self._folder)
        return files_sha256({path.name: path})

    def environment(self) -> ProgrammingEnvironment:
        """An environment that can play any problem of the set. Raises MissingInput."""
        section = self._section
        problems = {one.id: one for one in self.problem_set.problems}
        limits = Limits(cpu_seconds=section.cpu_seconds, wall_seconds=4.0 * section.cpu_seconds)
        return ProgrammingEnvironment(problems, section.own_tests, section.max_steps, limits)

    @cached_property
    def problem_set(self) -> ProblemSet:
        """What the data say. Raises MissingInput."""
        return load(self._section.split, self._folder)

    @property
    def _folder(self) -> Path:
        if self._section.data is None:
            raise MissingInput("Set environment.data to the folder with the problems, such as HumanEval.jsonl.")
        return self._section.data


def taskset(section: Programming, seed: int = 0) -> ProgrammingTaskset:
    """The problems that a section describes; there is nothing to draw by `seed`."""
    return ProgrammingTaskset(section)
