"""Where tasks come from. Adding an environment: one file here, one section in config.py, one YAML, one test."""

from retroformer.config import Alfworld, Hotpotqa
from retroformer.protocols import Taskset


def taskset(section: Alfworld | Hotpotqa, seed: int = 0) -> Taskset:
    """The tasks that a section describes. Imports only what that environment needs."""
    match section:
        case Alfworld():
            from retroformer.environments import alfworld

            return alfworld.taskset(section, seed)
        case Hotpotqa():
            from retroformer.environments import hotpotqa

            return hotpotqa.taskset(section, seed)
