"""The command `retroformer gepa`."""

from typing import Annotated

import typer

from retroformer.config.command_line import ConfigFile, Overrides, example, make_app
from retroformer.config.imports import require_extra

app = make_app()


@app.command(
    options_metavar="[--retries NUMBER] [--proposer MODEL] [--tokens NUMBER]",
    epilog=example("gepa configs/demo.yaml --retries 200 --proposer base"),
)
def gepa(
    config: ConfigFile,
    overrides: Overrides,
    *,
    retries: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", min=1, help="Number of retries to spend. By default as many as the collection made."
        ),
    ] = None,
    proposer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model at the reflector's endpoint that proposes documents. By default the one that collects.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Most tokens of a document.")] = 256,
) -> None:
    """Optimise one document of advice for all tasks with GEPA, from the actor's retries.

    Reads the failed first attempts of `retroformer collect`. Writes the best document to runs/NAME/gepa/document.md,
    for an arm of kind `document`, and the retries to the store of the run.
    """
    from retroformer.config.file import load_config

    require_extra("gepa", "gepa")
    from retroformer.integrations.gepa.search import optimize

    typer.echo(optimize(load_config(config, overrides), retries=retries, proposer=proposer, tokens=tokens))
