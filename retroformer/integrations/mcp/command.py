"""The command `retroformer mcp`."""

from typing import Annotated

import typer

from retroformer.config.command_line import ConfigFile, Overrides, example, make_app

app = make_app()


@app.command(
    options_metavar="[--http PORT]",
    epilog=example("mcp configs/agent.yaml serve.port=8000"),
)
def mcp(
    config: ConfigFile,
    overrides: Overrides,
    *,
    http: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve this port of 127.0.0.1 instead of standard input; 0: a free one.",
        ),
    ] = None,
) -> None:
    """Offer the reflector's advice to an agent as tools of an MCP server.

    Reads requests from standard input. Writes answers to standard output, and attempts and advice to the store of the
    run.
    """
    from retroformer.config.file import load
    from retroformer.integrations.mcp.adviser import serve_advice

    serve_advice(load(config, overrides), http)
