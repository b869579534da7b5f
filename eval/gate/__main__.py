"""`retroformer promote`, `rollback`, `promotions` and `monitor`: which adapter is served as `reflector`."""

import asyncio
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retroformer.config.command_line import ConfigFile, Overrides, call, example, make_app
from retroformer.errors import run_command

if TYPE_CHECKING:
    from retroformer.run.promotions.history import History
    from retroformer.run.promotions.promotion import Promotion


app = make_app()
_HEADER = ("number", "time (UTC)", "what", "reflector", "before", "evidence or reason")


class Opponent(StrEnum):
    """What a candidate is compared with."""

    CURRENT = "current"
    NONE = "none"


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
        Opponent, typer.Option(help="Compare it with the current reflector, or with no advice.")
    ] = Opponent.CURRENT,
) -> None:
    """Serve another adapter as reflector, if it is shown to be better.

    Reads the adapter and the tasks of the first split of eval.split. Plays them with the advice of both until a
    sequential test decides. Writes attempts to the store and the promotion to runs/RUN, which a running server follows.
    The exit status is 1 if the adapter is not promoted.
    """
    from .promote import decide, prepare

    decision = asyncio.run(decide(prepare(config, overrides, adapter, against.value)))
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
    from retroformer.run.promotions.history import roll_back

    history = _run_history(config, overrides)
    print(_sentence_of(roll_back(history, history.records(), reason)))


@app.command(epilog=example("promotions configs/demo.yaml"))
def promotions(config: ConfigFile, overrides: Overrides) -> None:
    """List the promotions and rollbacks of a run with their evidence.

    Reads the promotions in runs/RUN. Writes nothing but this list.
    """
    print(_table_of(_run_history(config, overrides).records()))


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


def _run_history(config: Path, overrides: Sequence[str]) -> "History":
    """Return the promotions of the run that a config names. Raises ConfigError, MissingInput."""
    from retroformer.config.file import load_domains
    from retroformer.run.promotions.history import History

    return History(load_domains(config, overrides)[0].folder)


def _sentence_of(promotion: "Promotion") -> str:
    """Return what has changed."""
    from retroformer.run.promotions.history import name_of

    return f"{promotion.kind}: reflector is {name_of(promotion.adapter)}, it was {name_of(promotion.replaced)}."


def _table_of(records: Sequence["Promotion"]) -> str:
    """Return all promotions as a table; a sentence if there are none."""
    from retroformer.run.promotions.history import name_of

    from ..report.markdown import table_lines

    if not records:
        return (
            "Nothing is recorded yet: `retroformer serve` records the first adapter, `retroformer promote` every other."
        )
    rows = [
        [
            str(record.number),
            f"{record.at:%Y-%m-%d %H:%M}",
            record.kind,
            name_of(record.adapter),
            name_of(record.replaced),
            "; ".join(text for text in (record.reason, str(record.evidence or "")) if text),
        ]
        for record in records
    ]
    return table_lines(_HEADER, rows)


def main(arguments: list[str]) -> None:
    call(app, f"python -m {__package__}", arguments)


if __name__ == "__main__":
    run_command(main)
