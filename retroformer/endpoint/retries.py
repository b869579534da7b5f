"""One call of a model endpoint over HTTP, with retries, a time limit and an account of its cost.

Status codes 408, 409, 429 and 5xx and lost connections are retried after the pause that the server requests
(Retry-After), or else with exponential backoff. The call fails at once if the requested pause exceeds its time left.
Every attempt goes to the address with the most room, a retry to another one than before if there are several, and at
once if that one has not asked for a pause, too. It waits there for its turn; that wait is not limited.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from retroformer.endpoint.pace import Server, least_loaded
from retroformer.endpoint.retry_policy import TRIES, asked_pause, is_temporary, pause_after
from retroformer.errors import EndpointBusy, EndpointFailure, EndpointRefusal
from retroformer.records import Usage
from retroformer.secrets.redaction import redacted
from retroformer.secrets.url import SecretUrl

if TYPE_CHECKING:
    from openai import APIStatusError

    from retroformer.endpoint.http_client import Sending

_REFUSED = {401, 402, 403, 404}
"""Status codes for a wrong key, account, permission, or model and address, which would fail every call."""
_OVERLOADED = {429, 503, 529}
_SHOWN = 300
"""Number of characters of a server's message that an error message shows."""


class Call:
    """One request with its retries. `lost` is the cost of attempts whose responses did not arrive."""

    def __init__(
        self,
        servers: Sequence[Server],
        path: str,
        body: dict[str, Any],
        seconds: float,
        price_of_a_lost_answer: Usage,
        sentence: Callable[[str, SecretUrl], str],
    ) -> None:
        """Prepare the call. `sentence` turns what an address did into an error message."""
        self._servers, self._path, self._body, self._seconds = servers, path, body, seconds
        self._server = servers[0]
        self._price, self._say = price_of_a_lost_answer, sentence
        self._sending: Sending | None = None
        self._last_fault = ""
        self.lost = Usage()

    async def answer(self) -> object:
        """Send the request and return the response, JSON or text.

        Raises:
            EndpointRefusal: the key, the account or the model is refused.
            EndpointBusy: the server requests a pause that is longer than the time left, or one after the last attempt.
            EndpointFailure: the response did not arrive in time, is too long, or cannot be parsed.
        """
        try:
            # The HTTP client's own timeout restarts at every byte, so a response that trickles in would never time out.
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
        for attempt in range(1, 1 + TRIES):
            others = [server for server in self._servers if attempt == 1 or server is not self._server]
            self._server = least_loaded(others or self._servers)
            try:
                return await self._in_turn(limit)
            except _Temporary as fault:
                self._last_fault = fault.what
                others = [server for server in self._servers if server is not self._server]
                asks = fault.asked_pause is not None
                if asks and attempt < TRIES and not all(other.pace.is_paused for other in others):
                    continue
                pause = pause_after(attempt) if fault.asked_pause is None else fault.asked_pause
                if pause < _left(limit) and attempt < TRIES:
                    await asyncio.sleep(pause)
                    continue
                if fault.asked_pause is None:
                    raise self._failure(fault.what) from None
                what = fault.what if attempt == TRIES else f"{fault.what}, and asks for a pause of {pause:g} s"
                raise EndpointBusy(self._sentence(what), retry_after_seconds=pause, usage=self.lost) from None
        raise AssertionError("unreachable: the last try returns or raises")

    async def _in_turn(self, limit: asyncio.Timeout) -> object:
        """Send the request when it is its turn at the address. Raises _Temporary, EndpointFailure."""
        left, pace = _left(limit), self._server.pace
        limit.reschedule(None)  # The wait for other requests is not the endpoint's time.
        async with pace.turn() as began:
            limit.reschedule(began + left)
            try:
                answer = await self._once()
            except _Temporary as fault:
                if fault.is_overload:
                    asked = fault.asked_pause or 0.0
                    waited_for = asked if asked < _left(limit) else 0.0
                    pace.slow_down(began, waited_for)
                    # Nobody waits for a pause beyond the time limit of a call; other addresses are asked meanwhile.
                    pace.avoid(asked - waited_for)
                raise
            pace.speed_up()
            return answer

    async def _once(self) -> object:
        """Send the request once. Raises _Temporary, EndpointFailure."""
        import openai

        from retroformer.endpoint.http_client import SENDING, AnswerTooLong, Sending

        self._sending = Sending()
        SENDING.set(self._sending)
        try:
            # The client's typed methods validate every field of requests and responses: half of a rollout's time.
            answer: object = await self._server.client.post(self._path, body=self._body, cast_to=object)
        except openai.APIStatusError as error:
            raise self._status_fault(error) from None
        except (openai.OpenAIError, ValueError, RecursionError) as error:
            self._count_lost_answer()
            if isinstance(error, AnswerTooLong) or isinstance(error.__cause__, AnswerTooLong):
                raise self._failure(str(error if isinstance(error, AnswerTooLong) else error.__cause__)) from None
            what = f"{type(error).__name__}: {_shortened(str(error))}"
            lost = isinstance(error, openai.APIConnectionError)
            raise _Temporary(what, is_overload=True) if lost else self._failure(what) from None
        self._sending = None
        return answer

    def _status_fault(self, error: "APIStatusError") -> Exception:
        what = f"answered {error.status_code}: {_reason(error)}"
        if error.status_code in _REFUSED or "insufficient_quota" in (error.code, error.type):
            return EndpointRefusal(self._sentence(what), usage=self.lost)
        headers = error.response.headers
        temporary = is_temporary(error.status_code)
        if {"true": True, "false": False}.get(headers.get("x-should-retry", ""), temporary):
            return _Temporary(what, asked_pause(headers), is_overload=error.status_code in _OVERLOADED)
        return self._failure(what)

    def _sentence(self, what: str) -> str:
        return self._say(what, self._server.address)

    def _failure(self, what: str) -> EndpointFailure:
        return EndpointFailure(self._sentence(what), usage=self.lost)

    def _count_lost_answer(self) -> None:
        """Add the price of a lost response, at most once per attempt."""
        if self._sending is not None and self._sending.may_be_charged:
            self.lost += self._price
        self._sending = None


class _Temporary(Exception):
    """Failure of an attempt that a retry may fix.

    `asked_pause` is the pause that the server requests, in seconds; `is_overload` says whether the address should get
    fewer requests.
    """

    def __init__(self, what: str, asked_pause: float | None = None, *, is_overload: bool = False) -> None:
        super().__init__(what)
        self.what, self.asked_pause, self.is_overload = what, asked_pause, is_overload


def _left(limit: asyncio.Timeout) -> float:
    """Return the seconds until a time limit."""
    return (limit.when() or math.inf) - asyncio.get_running_loop().time()


def _reason(error: "APIStatusError") -> str:
    """Return the server's own message, from whichever field holds it."""
    reason = error.body
    if isinstance(reason, dict):
        reason = reason.get("message") or reason.get("detail") or reason
    return _shortened(str(reason or error.response.reason_phrase))


def _shortened(words: str) -> str:
    # Secrets are hidden before the text is cut: half of a key would not be recognised.
    return redacted(" ".join(words.split()))[:_SHOWN]
