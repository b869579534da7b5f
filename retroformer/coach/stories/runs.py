"""Opens runs for reading: by config, by folder, or by the file of a store. Nothing in them is changed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from retroformer.coach.stories.story import Leaks
from retroformer.config.experiment import STORE_FILE, Experiment
from retroformer.config.file import load_domains
from retroformer.endpoint.secrets.url import sqlite_url
from retroformer.environments.registry import extras
from retroformer.errors import MissingInput, RetroformerError
from retroformer.method.records import Trajectory
from retroformer.run.store import Store


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run, or one domain of it, with its store open for reading."""

    store: Store
    folder: Path
    """Folder with the run's models and reports; it may be missing."""
    experiment: Experiment | None = None
    """The config; None if the run was opened without it."""

    @property
    def name(self) -> str:
        return self.store.experiment

    @cached_property
    def leaks(self) -> Leaks | None:
        """The environment's check for advice that gives the solution away; None without config, check or data."""
        if self.experiment is None:
            return None
        try:
            offered = extras(self.experiment.environment).leak_check
            if offered is None:
                return None
            check = offered(self.experiment.environment, self.experiment.seed)
        except RetroformerError:
            return None

        def leaks(advice: str, attempts: Sequence[Trajectory]) -> bool:
            try:
                return bool(check.given_away(advice, attempts))
            except RetroformerError:
                return False

        return leaks


@contextmanager
def open_runs(path: Path, overrides: Sequence[str] = ()) -> Iterator[list[OpenRun]]:
    """Open a run for the time of a `with` block: by its config, its folder (runs/NAME) or the file of its store.

    A config with domains gives a run for each. So does a file with several runs.

    Raises:
        MissingInput: there is no such run.
        ConfigError: the config is wrong.
        StoreError: the store cannot be read.
    """
    with ExitStack() as stack:
        if path.is_dir() or path.suffix == ".db":
            yield list(_runs_of_file(path / STORE_FILE if path.is_dir() else path, overrides, stack))
        else:
            yield list(_runs_of_config(path, overrides, stack))


def _runs_of_config(path: Path, overrides: Sequence[str], stack: ExitStack) -> Iterator[OpenRun]:
    for experiment in load_domains(path, list(overrides)):
        if not experiment.has_store:
            raise MissingInput(
                f"The run {experiment.run!r} has no facts in {experiment.folder} yet: run `retroformer collect` first."
            )
        store = stack.enter_context(closing(Store(experiment.store_url, experiment.name, read_only=True)))
        yield OpenRun(store, experiment.folder, experiment)


def _runs_of_file(file: Path, overrides: Sequence[str], stack: ExitStack) -> Iterator[OpenRun]:
    if overrides:
        raise MissingInput(f"{overrides[0]} replaces an entry of a config, but {file} is a store: leave it out.")
    if not file.is_file():
        raise MissingInput(f"There is no run at {file}: name a config, the folder of a run or the file of its store.")
    url = sqlite_url(file)
    with closing(Store(url, "", read_only=True)) as every:
        names = every.experiments()
    if not names:
        raise MissingInput(f"The store {file} holds no facts yet: run `retroformer collect` first.")
    for name in names:
        yield OpenRun(stack.enter_context(closing(Store(url, name, read_only=True))), file.parent)
