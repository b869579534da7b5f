"""The sections of a config that say where a server is, and which of its models to call."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

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


WHOLE_DISTRIBUTION: Mapping[str, float] = MappingProxyType(
    {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
)
"""Fields of a request for tokens from the whole distribution, which is that of the log-probabilities of servers.

They are sent explicitly, since a server may take other defaults from the model's generation_config.json.
"""
_OURS = ("model", "messages", "prompt", "stream", "n")
"""Fields of a request that no config may change: the client writes them, or could not read the response."""


def _not_ours(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if taken := sorted(set(fields) & set(_OURS)):
        raise ValueError(f"the client itself writes {' and '.join(taken)}: leave it out")
    return fields


class Endpoint(Address):
    replicas: tuple[SecretUrl, ...] = ()
    """Further addresses that serve the same model. Every call goes to the address with the most room: each gets fewer
    requests at once after it answers 429, and more after other answers."""
    model: str = "base"
    """Model name to request: `base`, a stage of this run, a name in serve.adapters, or the remote model's name."""
    api: Literal["chat", "completions"] = "chat"
    """OpenAI API to call: chat completions or plain completions."""
    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_not_ours)] = Field(default_factory=dict)
    """Further fields of every request, such as `{reasoning_effort: low}`; null removes a field that the endpoint
    refuses, as in `{temperature: null}` or `{max_tokens: null, max_completion_tokens: 300}`."""
    dollars_per_million: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (0.0, 0.0)
    """Prices in dollars per million prompt tokens and per million completion tokens, for the accounts and the
    budget."""

    def dollars(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return the price of these numbers of tokens."""
        price_in, price_out = self.dollars_per_million
        return (prompt_tokens * price_in + completion_tokens * price_out) / 1e6
