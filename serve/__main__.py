"""One command for the whole endpoint: starts it, waits until it is healthy, keeps it alive, stops all together."""

import argparse
import json
import os
import signal
import threading
from pathlib import Path

from retroformer.config_file import load
from retroformer.errors import run_command
from serve import endpoint


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m serve", description=__doc__)
    parser.add_argument("experiment", type=Path, help="a YAML file such as configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="as in serve.port=0")
    parser.add_argument(
        "--until-input-closes", action="store_true", help="also stop when standard input ends, as when a parent dies"
    )
    parser.add_argument(
        "--more-from-input",
        action="store_true",
        help="read overrides before these, a JSON list, from the first line of standard input",
    )
    arguments = parser.parse_args(argv)
    more = json.loads(_first_line_of_input() or b"[]") if arguments.more_from_input else []
    experiment = load(arguments.experiment, [*more, *arguments.overrides])
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if arguments.until_input_closes:
        threading.Thread(target=_stop_when_input_closes, args=(stop,), daemon=True).start()
    endpoint.run(experiment, arguments.experiment, stop)


def _first_line_of_input() -> bytes:
    """Byte by byte: what follows must be left for who waits until the input closes."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _stop_when_input_closes(stop: threading.Event) -> None:
    while os.read(0, 4096):
        continue
    stop.set()


if __name__ == "__main__":
    run_command(main)
