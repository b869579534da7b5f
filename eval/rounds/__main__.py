"""`retroformer rounds`: collects, trains and validates several times, each time with the better reflector."""

import signal
import sys

from retroformer.config.command_line import ConfigFile, Overrides, call, example, make_app
from retroformer.errors import run_command

app = make_app()


@app.command(epilog=example("rounds configs/evidence/seed.yaml rounds.split=valid_seen"))
def rounds(config: ConfigFile, overrides: Overrides) -> None:
    """Collect, train and validate in rounds, each with the better reflector so far.

    With rounds.staleness, a round is collected while the one before it trains.

    Reads the tasks of environment.split and of rounds.split. Writes what `collect` and `train` write to runs/RUN, and
    the comparisons of the reflectors to runs/RUN.development. Finished work is not repeated.
    """
    from .rounds import improve_in_rounds

    # A signal that ends this process must end its commands, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped by SIGTERM: run the same command again to go on."))
    for sentence in improve_in_rounds(config, overrides):
        print(sentence, flush=True)


def main(arguments: list[str]) -> None:
    call(app, f"python -m {__package__}", arguments)


if __name__ == "__main__":
    run_command(main)
