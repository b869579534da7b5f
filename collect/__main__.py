"""`retroformer collect`: rates reflections, writes advice for the warm start, or receives traces."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from retroformer.config.command_line import Commands, ConfigFile, Overrides, call, example, make_app
from retroformer.errors import run_command

if TYPE_CHECKING:
    from retroformer.config.experiment import Experiment


class CollectCommands(Commands):
    default = "rate"


app = make_app(
    "Stage 1: play tasks and rate reflections. `collect EXPERIMENT.yaml` is `collect rate EXPERIMENT.yaml`.",
    CollectCommands,
)


@app.command(options_metavar="[--dry-run]", epilog=example("collect configs/demo.yaml run=try2"))
def rate(
    config: ConfigFile,
    overrides: Overrides,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the work left and its maximum cost, then exit.")
    ] = False,
) -> None:
    """Play tasks and rate reflections on the failures.

    Reads the tasks of environment.split. Writes attempts and rated reflections to the store, by default
    runs/RUN/experience.db. Stored work is not repeated, so the same command continues after a stop.
    """
    from retroformer.config.file import load_configs

    for loaded in load_configs(config, overrides):
        _print_domain(loaded.experiment)
        if dry_run:
            from .plan import describe_plan

            print(describe_plan(loaded))
        else:
            from .rate import rate_reflections

            print(asyncio.run(rate_reflections(loaded)))


@app.command(epilog=example("collect warm configs/demo.yaml"))
def warm(config: ConfigFile, overrides: Overrides) -> None:
    """Write advice by rule, for a warm start.

    Reads the tasks of environment.split. Writes collect.written pieces of advice to the store, for `train warm`.
    """
    from retroformer.config.file import load_configs

    from .warm import write_advice

    configs = load_configs(config, overrides)
    # Not every environment has advice written by rule; without any, the first domain says what is missing.
    for loaded in [loaded for loaded in configs if loaded.experiment.collect.written] or configs[:1]:
        _print_domain(loaded.experiment)
        print(asyncio.run(write_advice(loaded)))


@app.command(options_metavar="[--port PORT]", epilog=example("collect listen configs/agent.yaml"))
def listen(
    config: ConfigFile,
    overrides: Overrides,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes any.")] = 4318,
) -> None:
    """Receive traces that other programs export, until it is interrupted.

    Reads OTLP over HTTP at /v1/traces. Writes every request to runs/RUN/traces before it answers. Afterwards import
    that folder: import EXPERIMENT.yaml runs/RUN/traces --format otlp.
    """
    from retroformer.config.file import load
    from retroformer.config.imports import load_plugin

    serve = load_plugin("retroformer.listeners", "otlp", "trace listener")
    inbox = load(config, overrides).folder / "traces"
    serve(inbox, port, lambda address: print(f"{address} receives traces in {inbox}", flush=True))


def _print_domain(experiment: "Experiment") -> None:
    """Print which domain the next lines are about, if the config has domains."""
    if experiment.domain:
        print(f"domain       {experiment.domain}", flush=True)


def main(arguments: list[str]) -> None:
    call(app, f"python -m {__package__}", arguments)


if __name__ == "__main__":
    run_command(main)
