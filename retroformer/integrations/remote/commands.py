"""The commands `retroformer push` and `retroformer pull`."""

from pathlib import Path
from typing import Annotated

import typer

from retroformer.config.command_line import ConfigFile, Overrides, example, make_app
from retroformer.config.imports import require_extra

Address = Annotated[
    str,
    typer.Argument(metavar="ADDRESS", help="hf://OWNER/NAME, or an fsspec address such as s3://BUCKET/FOLDER."),
]

push_app, pull_app = make_app(), make_app()


@push_app.command(
    options_metavar="[--stage STAGE] [--private]",
    epilog=example("push configs/demo.yaml hf://me/advice --stage sft"),
)
def push(
    config: ConfigFile,
    address: Address,
    overrides: Overrides,
    *,
    stage: Annotated[str | None, typer.Option(metavar="STAGE", help="Push the adapter of this stage.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository of the hub as private.")] = False,
) -> None:
    """Copy a run's ratings, or with --stage an adapter, to a hub or bucket.

    Reads the store of the run, or its folder runs/RUN/STAGE. Writes the facts as Parquet files, or the adapter with its
    card, the config without secrets, and a manifest of hashes to ADDRESS.
    """
    require_extra("remote", "fsspec", "huggingface_hub")
    from retroformer.integrations.remote.transfer import push_run

    typer.echo(push_run(config, overrides, address, stage, private=private))


@pull_app.command(
    options_metavar="[--if-pushed]",
    epilog=(
        "TARGET is a folder, by default one with the last name in ADDRESS, or a config (.yaml): an adapter then goes "
        "where its stages find it, and ratings go to its store.\n\n"
        "Example: retroformer pull hf://me/advice configs/demo.yaml"
    ),
)
def pull(
    address: Address,
    target: Annotated[Path | None, typer.Argument(metavar="TARGET", help="Folder or config.")] = None,
    *,
    if_pushed: Annotated[bool, typer.Option("--if-pushed", help="Do nothing if nothing was pushed there.")] = False,
) -> None:
    """Copy an adapter or ratings from a hub or bucket, and verify their hashes.

    Reads what `retroformer push` wrote to ADDRESS. Writes a folder, or to the run of a config: runs/RUN/STAGE, or its
    store.
    """
    require_extra("remote", "fsspec", "huggingface_hub")
    from retroformer.integrations.remote.transfer import pull_to

    typer.echo(pull_to(address, target, if_pushed=if_pushed))
