"""One door to every language model: the OpenAI protocol, chat or completions, with accounts.

A call that fails for good raises EndpointFailure; what it means for the rollout is the caller's business.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from retroformer.config import Endpoint
from retroformer.errors import ConfigError, EndpointFailure
from retroformer.own_server import choices_field, seed_field
from retroformer.records import Message, Record, Usage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

Prompt = str | tuple[Message, ...]

_PATIENCE = 2
"""Retries of one call inside the client, with exponential back-off, for 408, 409, 429, 5xx and lost connections."""
_LONGEST_PAUSE_SECONDS = 60.0
"""Before a retry, if the server asks for one."""


class Completion(Record):
    """What a model wrote, and what it consumed."""

    text: str
    usage: Usage


class LanguageModel:
    """A model behind an OpenAI-compatible endpoint."""

    def __init__(self, endpoint: Endpoint, base_url: str, model: str | None = None) -> None:
        self.endpoint = endpoint
        self.base_url = base_url
        self.model = model or endpoint.model
        self._client: AsyncOpenAI | None = None

    async def complete(
        self,
        prompt: Prompt,
        *,
        temperature: float,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        seed: int | None = None,
        choices: Sequence[str] | None = None,
    ) -> Completion:
        """Text that continues a plain prompt or answers a chat; with `choices` it is one of them, cut at a stop string.

        Raises:
            ConfigError: choices are for the experiment's own server, and this is another.
            EndpointFailure: refused, timed out, or answered what is not a completion, after the client's retries.
        """
        fields = self._fields(seed, choices)
        return self._read(await self._call(prompt, temperature, max_new_tokens, [*stop, *fields], seed), prompt)

    async def post(self, path: str, body: dict[str, Any]) -> object:
        """What the endpoint answers to `body`, JSON or text, after the client's retries.

        Raises:
            EndpointFailure: refused, timed out, or not understood, and retries did not help.
        """
        import openai

        seconds = self.endpoint.timeout_seconds
        try:
            # The client's own clock starts anew at every byte, so an answer that trickles in would never be late.
            async with asyncio.timeout((1 + _PATIENCE) * (seconds + _LONGEST_PAUSE_SECONDS)):
                # Its typed methods walk through every message and answer field by field: half of a rollout's time.
                return await self._connected().post(path, body=body, cast_to=object)
        except (openai.APITimeoutError, TimeoutError):
            raise self._failure(f"gave no answer within {seconds:g} s in {1 + _PATIENCE} tries") from None
        except openai.APIStatusError as error:
            raise self._failure(f"answered {error.status_code}: {_reason(error)}") from None
        except (openai.OpenAIError, json.JSONDecodeError, UnicodeError, RecursionError) as error:
            raise self._failure(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from None

    def _fields(self, seed: int | None, choices: Sequence[str] | None) -> list[str]:
        """What only the experiment's own server understands."""
        if self.endpoint.base_url is not None:
            if choices is not None:
                raise ConfigError(
                    f"The model {self.model!r} at {self.base_url} cannot be held to choices: only the experiment's own "
                    "server can, so leave base_url out."
                )
            return []
        seeds = [] if seed is None else [seed_field(seed)]
        return seeds if choices is None else [*seeds, choices_field(choices)]

    async def _call(self, prompt: Prompt, temperature: float, tokens: int, stop: list[str], seed: int | None) -> object:
        common: dict[str, Any] = {"model": self.model, "temperature": temperature, "max_tokens": tokens}
        if stop:
            common["stop"] = stop
        if seed is not None:
            common["seed"] = seed
        if self.endpoint.api == "chat":
            turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
            return await self.post("/chat/completions", common | {"messages": [turn.model_dump() for turn in turns]})
        text = prompt if isinstance(prompt, str) else "\n".join(turn.content for turn in prompt)
        return await self.post("/completions", common | {"prompt": text})

    def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            from openai import AsyncOpenAI

            self._client = AsyncOpenAI(
                base_url=self.base_url,
                api_key=os.environ.get(self.endpoint.api_key_env) or "none",
                timeout=self.endpoint.timeout_seconds,
                max_retries=_PATIENCE,
            )
        return self._client

    def _read(self, answer: object, prompt: Prompt) -> Completion:
        """Any JSON or text may be inside."""
        choices = answer.get("choices") if isinstance(answer, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        message = choice.get("message") if self.endpoint.api == "chat" else choice
        text = message.get("content" if self.endpoint.api == "chat" else "text") if isinstance(message, dict) else None
        if not isinstance(text, str):
            raise self._failure(f"answered what is not a completion: {str(answer)[:200]!r}")
        usage = answer.get("usage") if isinstance(answer, dict) else None
        text = _encodable(text)
        return Completion(text=text, usage=self._usage(usage if isinstance(usage, dict) else {}, prompt, text))

    def _usage(self, reported: dict[str, object], prompt: Prompt, text: str) -> Usage:
        counts = [reported.get(name) for name in ("prompt_tokens", "completion_tokens")]
        prompt_tokens, completion_tokens = (one if isinstance(one, int) and one >= 0 else None for one in counts)
        if prompt_tokens is None or completion_tokens is None:
            # A server that reports nothing must not make the budget endless: four characters are about a token.
            words = prompt if isinstance(prompt, str) else "".join(turn.content for turn in prompt)
            prompt_tokens, completion_tokens = len(words) // 4 + 1, len(text) // 4 + 1
        price_in, price_out = self.endpoint.dollars_per_million
        dollars = (prompt_tokens * price_in + completion_tokens * price_out) / 1e6
        return Usage(calls=1, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, dollars=dollars)

    def _failure(self, what: str) -> EndpointFailure:
        return EndpointFailure(f"The model {self.model!r} at {self.base_url} {_encodable(what).removesuffix('.')}.")

    async def close(self) -> None:
        """Give the connections back."""
        if self._client is not None:
            await self._client.close()


def _reason(error: "APIStatusError") -> str:
    """The server's own words, in whichever field it has them."""
    told = error.body
    if isinstance(told, dict):
        told = told.get("message") or told.get("detail") or told
    return " ".join(str(told or error.response.reason_phrase).split())[:300]


def _encodable(text: str) -> str:
    """JSON may hold halves of characters, which no file, database or request takes."""
    return text.encode("utf-8", "replace").decode()
