"""`retroformer train`: trains one stage, estimates the memory it needs, or exports the full weights of a stage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retroformer.config.command_line import ConfigFile, Overrides, call, example, make_app
from retroformer.config.imports import require_extra
from retroformer.errors import run_command

from .stage_kinds import STAGES, StageName

if TYPE_CHECKING:
    from retroformer.config.file import Config

Stage = Annotated[StageName, typer.Argument(metavar="STAGE", help="The trained stage.")]
Cards = Annotated[list[float] | None, typer.Option("--card", metavar="GIB", help="Memory of a GPU; may be repeated.")]
Lengths = Annotated[
    str, typer.Option("--tokens", metavar="N,N", help="Sample lengths in tokens (default: train.max_length).")
]

app = make_app(
    "Stage 2: train adapters on rated reflections. A stage that is done with the same inputs is not run again."
)


def _add_stage(name: str, does: str, reads: str) -> None:
    description = f"{does}\n\nReads {reads}. Writes an adapter and its model card to runs/RUN/{name}."

    @app.command(name, help=description, epilog=example(f"train {name} configs/demo.yaml"))
    def train_stage(config: ConfigFile, overrides: Overrides) -> None:
        with _load(config, overrides) as loaded:
            from .commands import train

            if summary := train(name, loaded):
                print(summary)


for _kind in STAGES.values():
    _add_stage(_kind.name, _kind.does, _kind.reads)


@app.command(
    options_metavar="[--card GIB] [--tokens N,N] [--measure]", epilog=example("train plan configs/demo.yaml --card 24")
)
def plan(
    config: ConfigFile,
    overrides: Overrides,
    *,
    cards: Cards = None,
    tokens: Lengths = "",
    measure: Annotated[bool, typer.Option("--measure", help="Also take real steps on this machine.")] = False,
) -> None:
    """Print the memory that each stage needs, and which settings fit.

    Reads the config of the base model, but no weights unless --measure is given. Writes nothing to disk.
    """
    try:
        lengths = [int(part) for part in tokens.split(",") if tokens]
    except ValueError:
        raise typer.BadParameter(f"{tokens!r} is not a list of numbers.", param_hint="'--tokens'") from None
    with _load(config, overrides, single_process="plan") as loaded:
        from .plan.report import describe_plan

        # Printed one by one, since measuring takes minutes.
        for paragraph in describe_plan(loaded[0].experiment, cards or (), lengths, measure=measure):
            print(paragraph, end="\n\n", flush=True)


@app.command(epilog=example("train merge configs/demo.yaml sft"))
def merge(config: ConfigFile, stage: Stage, overrides: Overrides) -> None:
    """Merge the adapter of a stage into its base model and write full weights.

    Reads runs/RUN/STAGE, and texts of the run, on which it compares merged and unmerged logits. Writes
    runs/RUN/STAGE-merged in the type serve.dtype.
    """
    with _load(config, overrides, single_process="merge") as loaded:
        from .export.merge import merge, summary

        print(summary(merge(loaded[0].experiment, stage)))


@app.command(epilog=example("train gguf configs/demo.yaml sft"))
def gguf(config: ConfigFile, stage: Stage, overrides: Overrides) -> None:
    """Write the merged weights of a stage as a GGUF file for llama.cpp.

    Reads what `train merge` reads. Writes what `train merge` writes, and runs/RUN/STAGE.gguf.
    """
    with _load(config, overrides, single_process="gguf") as loaded:
        from .export.gguf_file import convert_stage

        path = convert_stage(loaded[0].experiment, stage)
        print(f"{path}: {path.stat().st_size / 1e6:,.0f} MB for llama.cpp")


@contextmanager
def _load(config: Path, overrides: list[str], single_process: str = "") -> Iterator[tuple["Config", ...]]:
    """Join the processes that a launcher started, and load the config of each domain, or the only one.

    The command `single_process` runs in one process.
    """
    # Threads that spin while they wait cost more than they bring beside other work. OpenMP reads this once.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from retroformer.config.file import load_configs

    require_extra("train", "torch", "trl")
    from . import processes

    with processes.process_group():
        if single_process:
            processes.require_one(single_process)
        loaded = load_configs(config, overrides)
        from .commands import silence_libraries

        silence_libraries()
        yield loaded


def main(arguments: list[str]) -> None:
    call(app, f"python -m {__package__}", arguments)


if __name__ == "__main__":
    run_command(main)
