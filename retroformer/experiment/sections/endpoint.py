"""The sections of a config that say where a server is, and which of its models to call."""

from typing import Annotated, Literal

from pydantic import Field

from retroformer.experiment.sections.base import Section
from retroformer.secrets.url import SecretUrl


class Address(Section):
    """Address of an OpenAI-compatible server, with what every call to it needs."""

    base_url: SecretUrl | None = None
    """OpenAI-compatible `/v1` address; None: the stage starts the experiment's own server. Credentials in the address
    (`https://user:password@host/v1`, `?api_key=`) are used but never written to a file, log or report."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key; a local server needs none."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Time limit of one call in seconds, its retries and their pauses included; after that it counts as failed."""


class Endpoint(Address):
    model: str = "base"
    """Model name to request: `base`, a stage of this run, a name in serve.adapters, or the remote model's name."""
    api: Literal["chat", "completions"] = "chat"
    """OpenAI API to call: chat completions or plain completions."""
    dollars_per_million: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (0.0, 0.0)
    """Prices in dollars per million prompt tokens and per million completion tokens, for the accounts and the
    budget."""

    def dollars(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return the price of these numbers of tokens."""
        price_in, price_out = self.dollars_per_million
        return (prompt_tokens * price_in + completion_tokens * price_out) / 1e6
