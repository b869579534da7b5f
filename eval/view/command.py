"""`retroformer view`: serves the site of some runs until it is interrupted."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from retroformer.errors import MissingInput
from retroformer.stories.runs import opened


def view(paths: Sequence[Path], port: int, announce: Callable[[str], None]) -> None:
    """Serve the site of these runs on a port of the loopback interface.

    Raises:
        MissingInput: there is no such run, or the extra `view` is not installed.
        ServiceError: the port is taken.
    """
    try:
        from .server import Server, open_site
    except ModuleNotFoundError as error:
        raise MissingInput(f"The viewer needs {error.name}: run `pip install 'retroformer[view]'`.") from error
    with ExitStack() as stack:
        runs = [run for path in paths for run in stack.enter_context(opened(path))]
        server = Server(stack.enter_context(open_site(runs)), port)
        announce(server.address)
        server.run()
