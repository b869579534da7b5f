"""Commands of `retroformer` and of `python -m STAGE`."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from retroformer.__main__ import EVAL_COMMANDS
from retroformer.config.imports import plugin_names

STAGES = ("collect", "train", "serve", "eval")
CONSOLE = (
    *STAGES,
    *EVAL_COMMANDS,
    "init",
    "play",
    "show",
    "export",
    "import",
    "recover",
    *plugin_names("retroformer.commands"),
)
"""Commands of `retroformer`."""


def commands(module: str) -> dict[tuple[str, ...], Any]:
    """Return the commands of a module that `python -m` runs, by their words; () if there is only one."""
    return dict(_below(get_command(import_module(f"{module}.__main__").app), ()))


def named(module: str, words: Sequence[str]) -> Any:
    """Return the command that these words begin with, or the group's default command. Raises LookupError."""
    command: Any = get_command(import_module(f"{module}.__main__").app)
    for word in words:
        if not isinstance(command, TyperGroup):
            break
        chosen = command.get_command(None, word)
        if chosen is None and command.default and not word.isidentifier():
            chosen = command.get_command(None, command.default)
        if chosen is None:
            raise LookupError(f"{module} has no command {word!r}")
        command = chosen
    return command


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("-")}


def _below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(command, TyperGroup):
        yield words, command
        return
    for name in command.list_commands(None):
        yield from _below(command.get_command(None, name), (*words, name))
