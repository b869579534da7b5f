"""Plays verifiers environments, and exports our environments to verifiers.

`verifiers.load_environment("retroformer.integrations.verifiers", config="demo.yaml")` finds `load_environment` here.
"""

from typing import Any

from retroformer.agents.actors import ANSWER
from retroformer.environments.extras import Extras
from retroformer.integrations.verifiers.section import Verifiers as Section
from retroformer.integrations.verifiers.taskset import environment_versions, require_environment, taskset

__all__ = ["Section", "extras", "load_environment", "taskset"]

extras = Extras(
    actors={"answer": ANSWER},
    require_machine=require_environment,
    tool_versions=environment_versions,
)


def load_environment(config: str, overrides: tuple[str, ...] = (), tasks: int | None = None) -> Any:
    """Return an environment of verifiers that plays the tasks of an experiment config.

    Args:
        config: path of the config.
        overrides: `key=value` words, as on the command line.
        tasks: number of tasks of each split; None: all of them.

    Raises ConfigError, MissingInput: the config or the data are wrong or missing.
    """
    from retroformer.integrations.verifiers.export import ExportedEnvironment

    return ExportedEnvironment(config, overrides, tasks)
