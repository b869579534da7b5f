"""Tasks of an environment of verifiers: it is loaded by its name, and its datasets are the splits."""

import importlib.metadata
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from retroformer.config.imports import module_files, require_extra
from retroformer.environments.tasksets import RowTaskset
from retroformer.errors import ConfigError
from retroformer.files.text import sha256_of
from retroformer.integrations.verifiers.section import Verifiers
from retroformer.method.protocols import Environment
from retroformer.run.provenance import numbered_sha256


class VerifiersTaskset(RowTaskset[dict[str, Any]]):
    """Tasks of one split of an environment of verifiers, in the order of its dataset; their ids are SPLIT/NUMBER."""

    def __init__(self, section: Verifiers) -> None:
        self._section = section
        super().__init__(
            section.name,
            section.split,
            lambda: {f"{section.split}/{number}": row for number, row in enumerate(_rows(self._loaded, section))},
            self._environment_of,
        )

    def fingerprint(self) -> str:
        """Return the sha256 of the dataset's rows. Raises MissingInput, ConfigError."""
        return sha256_of(json.loads(json.dumps(list(self.rows.values()), default=str)))

    @cached_property
    def _loaded(self) -> Any:
        return _load(self._section)

    def _environment_of(self, rows: Any) -> Environment:
        from retroformer.integrations.verifiers.environment import VerifiersEnvironment

        return VerifiersEnvironment(self._section, self._loaded, rows)


def taskset(section: Verifiers, seed: int = 0) -> VerifiersTaskset:
    """Return the tasks that a section describes; the seed of the experiment does not change them."""
    return VerifiersTaskset(section)


def require_environment(section: Verifiers) -> None:
    """Check that the environment can be loaded and has tasks. Raises MissingInput, ConfigError."""
    _rows(_load(section), section)


def environment_versions(section: Verifiers) -> dict[str, str]:
    """Return the version of the environment's package, or the sha256 of its files if no package has its name."""
    name = section.environment.split("/")[-1]
    try:
        return {name: importlib.metadata.version(name)}
    except importlib.metadata.PackageNotFoundError:
        return {name: numbered_sha256(module_files(name.replace("-", "_")))}


def _load(section: Verifiers) -> Any:
    """Return the environment that a section names. Raises MissingInput, ConfigError."""
    require_extra("verifiers", "verifiers")
    import verifiers

    with _keep_signals():
        try:
            return verifiers.load_environment(section.environment, **section.args)
        except Exception as error:  # The environment is a package of its own: anything may go wrong in it.
            raise ConfigError(
                f"The environment {section.environment!r} of verifiers cannot be loaded: {error}. "
                "Correct environment.environment and environment.args."
            ) from error


def _rows(environment: Any, section: Verifiers) -> list[dict[str, Any]]:
    """Return the tasks of the split.

    Raises ConfigError: the environment has one dataset, and `held_out` does not divide it; or two, and it is set.
    """
    has_training, has_evaluation = (environment.dataset_source is not None, environment.eval_dataset_source is not None)
    has_both, is_training = has_training and has_evaluation, section.split == "train"
    use_training = is_training if has_both else has_training
    dataset = environment.get_dataset() if use_training else environment.get_eval_dataset()
    tasks: list[dict[str, Any]] = dataset.to_list()
    if has_both:
        if section.held_out:
            raise ConfigError(
                f"{section.environment!r} has an evaluation dataset of its own: leave environment.held_out out."
            )
        return tasks
    if not is_training and not section.held_out:
        raise ConfigError(
            f"{section.environment!r} has one dataset of {len(tasks)} tasks: set environment.held_out to the number "
            "of tasks at its end that are held out."
        )
    if section.held_out >= len(tasks):
        raise ConfigError(f"{section.environment!r} has {len(tasks)} tasks: lower environment.held_out.")
    first = len(tasks) - section.held_out
    return tasks[:first] if is_training else tasks[first:]


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM, which every environment of verifiers replaces by its own."""
    in_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
