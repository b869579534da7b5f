"""`retroformer gateway`: stands between an agent and its provider, and improves the agent without changing it."""

from typing import Annotated

import typer

from retroformer.config.command_line import ConfigFile, Overrides, example, make_app
from retroformer.config.imports import require_extra
from retroformer.errors import ConfigError

app = make_app()


@app.command(
    options_metavar="[--upstream URL] [--port NUMBER] [--unadvised SHARE]",
    epilog=example("gateway configs/agent.yaml --upstream http://127.0.0.1:9000/v1"),
)
def gateway(
    config: ConfigFile,
    overrides: Overrides,
    *,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The provider's /v1 address. By default actor.endpoint.base_url, else https://api.openai.com/v1.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(metavar="NUMBER", min=0, max=65535, help="Port; 0 takes a free one.")] = 8100,
    unadvised: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Share of the tasks that get no advice.")
    ] = 0.1,
) -> None:
    """Improve an agent that cannot be changed, between it and its provider.

    Reads the agent's calls. Forwards them, and writes the attempts, the advice and the scores to the store of the run.
    Prints its address, which is OpenAI-compatible, and runs until it is interrupted.
    """
    from pydantic import TypeAdapter, ValidationError

    from retroformer.config.file import load_config
    from retroformer.endpoint.secrets.url import HttpUrl, SecretUrl

    require_extra("gateway", "aiohttp", "uvloop")
    from retroformer.integrations.gateway.service import run

    try:
        provider = TypeAdapter[SecretUrl | None](HttpUrl | None).validate_python(upstream)
    except ValidationError as error:
        raise ConfigError(f"--upstream is not the address of a provider: {error.errors()[0]['msg']}.") from None
    run(load_config(config, overrides), provider, port, unadvised)
