"""Programming tasks (Reflexion, section 4.3): problems, hidden tests, and a sandbox in which candidate code is judged."""

from retroformer.environments.programming.taskset import ProgrammingTaskset, taskset

__all__ = ["ProgrammingTaskset", "taskset"]
