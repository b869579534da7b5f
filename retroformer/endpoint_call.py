"""One call of a model endpoint over HTTP: its tries, the pauses between them, its limit in time, and what it has cost.

Repeated are 408, 409, 429, 5xx and lost connections, after the pause that the server asks for (Retry-After), or else an
exponential one. The call ends at once where the server asks for a longer pause than the call has time for.
"""

import asyncio
import math
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from retroformer.errors import EndpointBusy, EndpointFailure, EndpointRefusal
from retroformer.records import Usage
from retroformer.redaction import redacted

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

    from retroformer.bounded_client import Sending

TRIES = 3
_FIRST_PAUSE_SECONDS = 0.5
"""Doubled before each further try, less up to a quarter, so that many clients do not come back at once."""
_LONGEST_PAUSE_SECONDS = 7 * 86_400.0
"""A longer pause, or an endless one, is cut to this."""
_REFUSED = {401, 402, 403, 404}
"""The key, the account, the permission, or the model and address: the same for every call."""
_TEMPORARY = {408, 409, 429}
_SHOWN = 300
"""Characters of what a server says that are put into a sentence."""


class Call:
    """One request that is answered once; `lost` is what tries have cost whose answers did not arrive."""

    def __init__(
        self,
        client: "AsyncOpenAI",
        path: str,
        body: dict[str, Any],
        seconds: float,
        price_of_a_lost_answer: Usage,
        sentence: Callable[[str], str],
    ) -> None:
        """`sentence` completes what an endpoint did to the message of a failure."""
        self._client, self._path, self._body, self._seconds = client, path, body, seconds
        self._price, self._sentence = price_of_a_lost_answer, sentence
        self._sending: Sending | None = None
        self._last_fault = ""
        self.lost = Usage()

    async def answer(self) -> object:
        """JSON or text.

        Raises:
            EndpointRefusal: the key, the account or the model is refused.
            EndpointBusy: the server asks for a longer pause than the call has time for, or for one after the last try.
            EndpointFailure: no answer in time, or one that is too long or not to be understood.
        """
        try:
            # The HTTP client's own clock starts anew at every byte, so an answer that trickles in would never be late.
            async with asyncio.timeout(self._seconds) as limit:
                return await self._tries(limit)
        except TimeoutError:
            self._count_lost_answer()
            before = f" (before that it {self._last_fault})" if self._last_fault else ""
            raise self._failure(f"gave no answer within {self._seconds:g} s{before}") from None
        except asyncio.CancelledError as stopped:
            self._count_lost_answer()
            stopped.usage = self.lost  # type: ignore[attr-defined]  # For errors.usage_of.
            raise

    async def _tries(self, limit: asyncio.Timeout) -> object:
        for tried in range(1, 1 + TRIES):
            try:
                return await self._once()
            except _Temporary as fault:
                self._last_fault = fault.what
                pause = _pause_after(tried) if fault.asked_pause is None else fault.asked_pause
                if pause < (limit.when() or math.inf) - asyncio.get_running_loop().time() and tried < TRIES:
                    await asyncio.sleep(pause)
                    continue
                if fault.asked_pause is None:
                    raise self._failure(fault.what) from None
                what = fault.what if tried == TRIES else f"{fault.what}, and asks for a pause of {pause:g} s"
                raise EndpointBusy(self._sentence(what), retry_after_seconds=pause, usage=self.lost) from None
        raise AssertionError("unreachable: the last try returns or raises")

    async def _once(self) -> object:
        """Raises _Temporary, EndpointFailure."""
        import openai

        from retroformer.bounded_client import SENDING, AnswerTooLong, Sending

        self._sending = Sending()
        SENDING.set(self._sending)
        try:
            # Its typed methods walk through every message and answer field by field: half of a rollout's time.
            answer: object = await self._client.post(self._path, body=self._body, cast_to=object)
        except openai.APIStatusError as error:
            raise self._status_fault(error) from None
        except (openai.OpenAIError, ValueError, RecursionError) as error:
            self._count_lost_answer()
            if isinstance(error, AnswerTooLong) or isinstance(error.__cause__, AnswerTooLong):
                raise self._failure(str(error if isinstance(error, AnswerTooLong) else error.__cause__)) from None
            what = f"{type(error).__name__}: {_shortened(str(error))}"
            raise _Temporary(what) if isinstance(error, openai.APIConnectionError) else self._failure(what) from None
        self._sending = None
        return answer

    def _status_fault(self, error: "APIStatusError") -> Exception:
        what = f"answered {error.status_code}: {_reason(error)}"
        if error.status_code in _REFUSED or "insufficient_quota" in (error.code, error.type):
            return EndpointRefusal(self._sentence(what), usage=self.lost)
        headers = error.response.headers
        temporary = error.status_code in _TEMPORARY or error.status_code >= 500
        if {"true": True, "false": False}.get(headers.get("x-should-retry", ""), temporary):
            return _Temporary(what, asked_pause(headers))
        return self._failure(what)

    def _failure(self, what: str) -> EndpointFailure:
        return EndpointFailure(self._sentence(what), usage=self.lost)

    def _count_lost_answer(self) -> None:
        """Once for each try."""
        if self._sending is not None and self._sending.may_be_charged:
            self.lost += self._price
        self._sending = None


class _Temporary(Exception):
    """A try has failed, and another one may not; `asked_pause` is what the server asks for, in seconds."""

    def __init__(self, what: str, asked_pause: float | None = None) -> None:
        super().__init__(what)
        self.what, self.asked_pause = what, asked_pause


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to be left alone for; None where it asks for nothing of the kind."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        said = headers.get(name)
        seconds = None if said is None else _seconds(said, unit)
        if seconds is not None and seconds > 0:
            return min(seconds, _LONGEST_PAUSE_SECONDS)
    return None


def _seconds(said: str, unit: float) -> float | None:
    """A number or a date; the comparison of its caller leaves out what is no number."""
    try:
        return float(said) / unit
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(said)
    except (ValueError, OverflowError):
        return None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()


def _pause_after(tried: int) -> float:
    return _FIRST_PAUSE_SECONDS * 2.0 ** (tried - 1) * random.uniform(0.75, 1.0)


def _reason(error: "APIStatusError") -> str:
    """The server's own words, in whichever field it has them."""
    told = error.body
    if isinstance(told, dict):
        told = told.get("message") or told.get("detail") or told
    return _shortened(str(told or error.response.reason_phrase))


def _shortened(words: str) -> str:
    # Secrets first: half of a key would not be known again.
    return redacted(" ".join(words.split()))[:_SHOWN]
