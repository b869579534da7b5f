"""Programming tasks (Reflexion, section 4.3): problems, hidden tests, and a sandbox for candidate code."""

from retroformer.environments.programming.taskset import ProgrammingTaskset, taskset

__all__ = ["ProgrammingTaskset", "taskset"]
