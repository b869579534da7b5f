"""`retroformer view`: serves the site of some runs until it is interrupted, or writes it to a file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from retroformer.coach.stories.runs import OpenRun, opened
from retroformer.errors import MissingInput


def view(paths: Sequence[Path], port: int, announce: Callable[[str], None]) -> None:
    """Serve the site of these runs on a port of the loopback interface.

    Raises:
        MissingInput: there is no such run, or the extra `view` is not installed.
        ServiceError: the port is taken.
    """
    with _extra():
        from .server import SiteServer, open_site
    with _opened(paths) as runs, open_site(runs) as site:
        server = SiteServer(site, port)
        announce(server.address)
        server.run()


def export(paths: Sequence[Path], file: Path, most_stories: int, announce: Callable[[str], None]) -> None:
    """Write the site of these runs to one HTML file, with at most this many stories.

    Raises:
        MissingInput: there is no such run, or the extra `view` is not installed.
        ConfigError: the name of the file is not one of an HTML file.
        StoreError: a store cannot be read.
    """
    with _extra():
        from .export import export_site, html_file
    html_file(file)
    with _opened(paths) as runs:
        announce(export_site(runs, file, most_stories))


@contextmanager
def _extra() -> Iterator[None]:
    """Turn a missing library into a sentence that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingInput(f"The viewer needs {error.name}: run `pip install 'retroformer[view]'`.") from error


@contextmanager
def _opened(paths: Sequence[Path]) -> Iterator[list[OpenRun]]:
    with ExitStack() as stack:
        yield [run for path in paths for run in stack.enter_context(opened(path))]
