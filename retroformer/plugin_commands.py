"""Commands that integrations and installed packages add to `retroformer`, by entry points.

An entry point of the group `retroformer.commands` names a `typer.Typer` app: NAME = "module:app".
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.main import get_command

from retroformer.errors import MissingInput

ENTRY_POINTS = "retroformer.commands"
"""Entry point group of commands. Our own names take precedence."""


def plugin_command_names() -> list[str]:
    """Return the names of the added commands, sorted."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINTS)})


def plugin_command(name: str) -> Any:
    """Return the command that an integration or an installed package adds under this name; None if none does.

    Raises:
        MissingInput: it cannot be loaded, for example because an extra is not installed.
    """
    points = list(entry_points(group=ENTRY_POINTS, name=name))
    return _command(points[0]) if points else None


def _command(point: EntryPoint) -> Any:
    try:
        app = point.load()
        if isinstance(app, typer.Typer):
            return get_command(app)
    except (Exception, SystemExit) as error:  # The module is a package's own: anything may go wrong in it.
        package = point.dist.name if point.dist is not None else point.value
        why = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise MissingInput(
            f"The command {point.name!r} of the package {package} cannot be imported: {' '.join(why.split())}."
        ) from error
    raise MissingInput(f"The command {point.name!r} is {point.value}, which is not a typer.Typer app.")
