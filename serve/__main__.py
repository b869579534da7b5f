"""`retroformer serve`: starts the endpoint, waits until it is healthy, keeps it alive, and stops all of it together."""

import json
import signal
import sys
import threading
from typing import Annotated

import typer

from retroformer.config.command_line import ConfigFile, Overrides, call, example, make_app
from retroformer.errors import run_command

app = make_app()


@app.command(
    options_metavar="[--fastchat] [--until-input-closes] [--more-from-input]",
    epilog=example("serve configs/demo.yaml serve.port=0"),
)
def serve(
    config: ConfigFile,
    overrides: Overrides,
    *,
    fastchat: Annotated[
        bool, typer.Option("--fastchat", help="Answer through FastChat's controller and API server, started here.")
    ] = False,
    until_input_closes: Annotated[
        bool, typer.Option("--until-input-closes", help="Also stop when standard input ends, as when a parent dies.")
    ] = False,
    more_from_input: Annotated[
        bool, typer.Option("--more-from-input", help="Read earlier overrides, a JSON list, from standard input.")
    ] = False,
) -> None:
    """Stage 3: serve the base and its adapters.

    Reads the base model, and the adapters and promotions in runs/RUN. Writes logs to runs/RUN/logs, and the first
    adapter that is served as reflector to the promotions. Prints its address, which is OpenAI-compatible, once it
    answers. Runs until it is interrupted.
    """
    from retroformer.config.file import load_domains

    from . import endpoint
    from .supervisor import when_input_closes

    more = json.loads(sys.stdin.buffer.readline() or b"[]") if more_from_input else []
    # Base, adapters and settings of the server are the same for all domains.
    experiment = load_domains(config, [*more, *overrides])[0]
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if until_input_closes:
        when_input_closes(stop.set)
    # Only stages send overrides through standard input.
    endpoint.run(experiment, config, stop, of_stage=more_from_input, fastchat=fastchat)


def main(arguments: list[str]) -> None:
    call(app, f"python -m {__package__}", arguments)


if __name__ == "__main__":
    run_command(main)
