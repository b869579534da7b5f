"""`retroformer view`: serves the site of some runs until it is interrupted, or writes it to a file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from retroformer.coach.stories.runs import OpenRun, open_runs
from retroformer.environments.tasksets import require_package

from .export import export_site


def view(paths: Sequence[Path], port: int, announce: Callable[[str], None]) -> None:
    """Serve the site of these runs on a port of the loopback interface. Raises MissingInput, ServiceError."""
    require_package("starlette", "view")
    from .server import SiteServer, open_site

    with _open(paths) as runs, open_site(runs) as site:
        server = SiteServer(site, port)
        announce(server.address)
        server.run()


def export(paths: Sequence[Path], file: Path, most_stories: int, announce: Callable[[str], None]) -> None:
    """Write the site of these runs to one HTML file. Raises MissingInput, ConfigError, StoreError."""
    with _open(paths) as runs:
        announce(export_site(runs, file, most_stories))


@contextmanager
def _open(paths: Sequence[Path]) -> Iterator[list[OpenRun]]:
    with ExitStack() as stack:
        yield [run for path in paths for run in stack.enter_context(open_runs(path))]
