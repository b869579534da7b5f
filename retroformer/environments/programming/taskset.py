"""Tasksets of problems that a section of the experiment config describes."""

from functools import cached_property
from pathlib import Path

from retroformer.environments.programming.environment import ProgrammingEnvironment
from retroformer.environments.programming.limits import DEFAULT
from retroformer.environments.programming.loading import load, problem_file
from retroformer.environments.programming.problems import ProblemSet
from retroformer.environments.programming.section import Programming
from retroformer.errors import MissingInput
from retroformer.provenance import files_sha256
from retroformer.records import Task


class ProgrammingTaskset:
    """Taskset of the problems of one set."""

    def __init__(self, section: Programming, seed: int) -> None:
        self._section, self._seed = section, seed

    def tasks(self) -> tuple[Task, ...]:
        """Return all problems of the set, in its order. Raises MissingInput."""
        split = self._section.split
        return tuple(
            Task(id=problem.id, environment="programming", split=split) for problem in self.problem_set.problems
        )

    def fingerprint(self) -> str:
        """Return the sha256 of the file of problems. Raises MissingInput."""
        path = problem_file(self._section.split, self._folder)
        return files_sha256({path.name: path})

    def environment(self) -> ProgrammingEnvironment:
        """Return an environment that can play any problem of the set. Raises MissingInput."""
        section = self._section
        problems = {problem.id: problem for problem in self.problem_set.problems}
        return ProgrammingEnvironment(problems, section.own_tests, section.max_steps, DEFAULT, self._seed)

    @cached_property
    def problem_set(self) -> ProblemSet:
        """Problem set in the data. Raises MissingInput."""
        return load(self._section.split, self._folder)

    @property
    def _folder(self) -> Path:
        if self._section.data is None:
            raise MissingInput("Set environment.data to the folder with the problems, such as HumanEval.jsonl.")
        return self._section.data


def taskset(section: Programming, seed: int = 0) -> ProgrammingTaskset:
    """Return the problems that a section describes; `seed` decides which of the agent's own tests are kept."""
    return ProgrammingTaskset(section, seed)
