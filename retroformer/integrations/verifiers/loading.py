"""Loads an environment of verifiers and its datasets."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retroformer.environments.tasksets import require_package
from retroformer.errors import ConfigError
from retroformer.integrations.verifiers.section import Verifiers


def load(section: Verifiers) -> Any:
    """Return the environment that a section names.

    Raises:
        MissingInput: verifiers is not installed.
        ConfigError: the environment cannot be loaded.
    """
    require_package("verifiers", "verifiers")
    import verifiers

    with _signals_kept():
        try:
            return verifiers.load_environment(section.environment, **section.args)
        except Exception as error:  # The environment is a package of its own: anything may go wrong in it.
            raise ConfigError(
                f"The environment {section.environment!r} of verifiers cannot be loaded: {error}. "
                "Correct environment.environment and environment.args."
            ) from error


def rows(environment: Any, section: Verifiers) -> list[dict[str, Any]]:
    """Return the tasks of the split.

    Raises:
        ConfigError: the environment has one dataset, and `held_out` does not divide it.
    """
    if environment.dataset_source is not None and environment.eval_dataset_source is not None:
        if section.held_out:
            raise ConfigError(
                f"{section.environment!r} has an evaluation dataset of its own: leave environment.held_out out."
            )
        chosen = environment.get_dataset() if section.split == "train" else environment.get_eval_dataset()
        return list(chosen.to_list())
    single = environment.get_dataset if environment.dataset_source is not None else environment.get_eval_dataset
    tasks: list[dict[str, Any]] = single().to_list()
    if section.split == "held_out" and not section.held_out:
        raise ConfigError(
            f"{section.environment!r} has one dataset of {len(tasks)} tasks: set environment.held_out to the number "
            "of tasks at its end that are held out."
        )
    if section.held_out >= len(tasks):
        raise ConfigError(f"{section.environment!r} has {len(tasks)} tasks: lower environment.held_out.")
    first = len(tasks) - section.held_out
    return tasks[:first] if section.split == "train" else tasks[first:]


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM, which every environment of verifiers replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
