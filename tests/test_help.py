"""Whoever asks a room for help gets it, and nothing else happens."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "command",
    ["collect --help", "collect warm -h", "train --help", "train ppo -h", "train plan -h", "eval --help", "serve -h"],
)
def test_help_is_usage_and_no_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    room, *arguments = command.split()
    main: Callable[[list[str]], None] = import_module(f"{room}.__main__").main
    with suppress(SystemExit):  # argparse's way.
        main(arguments)
    told = capsys.readouterr()
    assert told.out.lower().startswith("usage:")
    assert f"python -m {room}" in told.out
    assert not told.err
