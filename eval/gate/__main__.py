"""`retroformer promote`, `rollback`, `promotions` and `monitor`: which adapter is served as `reflector`."""

import asyncio
import sys
from typing import Annotated, Literal

import typer

from retroformer.config.command_line import ConfigFile, Overrides, call, example, make_app
from retroformer.errors import run_command

app = make_app()
_HEADER = ("number", "time (UTC)", "what", "reflector", "before", "evidence or reason")


@app.command(
    epilog="ADAPTER is the name of a finished stage, such as ppo, or of serve.adapters.\n\n"
    + example("promote configs/demo.yaml ppo")
)
def promote(
    config: ConfigFile,
    adapter: Annotated[str, typer.Argument(metavar="ADAPTER", help="Adapter to serve as reflector.")],
    overrides: Overrides,
    *,
    against: Annotated[
        Literal["current", "none"], typer.Option(help="Compare it with the current reflector, or with no advice.")
    ] = "current",
) -> None:
    """Serve another adapter as reflector, if it is shown to be better.

    Reads the adapter and the tasks of the first split of eval.split. Plays them with the advice of both until a
    sequential test decides. Writes attempts to the store and the promotion to runs/RUN, which a running server follows.
    The exit status is 1 if the adapter is not promoted.
    """
    from .promote import decide, prepare

    decision = asyncio.run(decide(prepare(config, overrides, adapter, against)))
    if decision.promotion is None:
        sys.exit(decision.sentence)
    print(decision.sentence)


@app.command(epilog=example("rollback configs/demo.yaml"))
def rollback(
    config: ConfigFile,
    overrides: Overrides,
    *,
    reason: Annotated[str, typer.Option(metavar="WORDS", help="Reason, for the record.")] = "by hand",
) -> None:
    """Serve the adapter before the current one again.

    Reads the promotions in runs/RUN. Writes a rollback to them, which a running server follows. Before the first
    adapter there was no advice: the reflector then answers with an empty text.
    """
    from retroformer.config.file import load_domains
    from retroformer.run.promotions import History, name_of, roll_back

    history = History(load_domains(config, overrides)[0].folder)
    record = roll_back(history, history.records(), reason)
    print(f"{record.kind}: reflector is {name_of(record.adapter)}, it was {name_of(record.replaced)}.")


@app.command(epilog=example("promotions configs/demo.yaml"))
def promotions(config: ConfigFile, overrides: Overrides) -> None:
    """List the promotions and rollbacks of a run with their evidence.

    Reads the promotions in runs/RUN. Writes nothing but this list.
    """
    from retroformer.config.file import load_domains
    from retroformer.run.promotions import History, name_of

    from ..report.markdown import table_lines

    rows = [
        [
            str(record.number),
            f"{record.at:%Y-%m-%d %H:%M}",
            record.kind,
            name_of(record.adapter),
            name_of(record.replaced),
            "; ".join(text for text in (record.reason, str(record.evidence or "")) if text),
        ]
        for record in History(load_domains(config, overrides)[0].folder).records()
    ]
    if rows:
        print(table_lines(_HEADER, rows))
    else:
        print("Nothing is recorded yet: `retroformer serve` records the first adapter, `retroformer promote` others.")


@app.command(epilog=example("monitor configs/agent.yaml --once"))
def monitor(
    config: ConfigFile,
    overrides: Overrides,
    *,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    every: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Time between two looks.")] = 60.0,
) -> None:
    """Roll the reflector back once live outcomes show that its advice is worse than none.

    Reads the retries of agents that run, with advice and without, from the store. Writes a rollback to the promotions
    in runs/RUN, which a running server follows. Runs until it is interrupted.
    """
    from retroformer.config.file import load

    from .monitor import keep_looking, look

    experiment = load(config, overrides)
    if once:
        print(look(experiment))
        return
    for found in keep_looking(experiment, every):
        print(found, flush=True)


def main(arguments: list[str]) -> None:
    call(app, f"python -m {__package__}", arguments)


if __name__ == "__main__":
    run_command(main)
