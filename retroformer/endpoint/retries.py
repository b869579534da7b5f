"""The policy for HTTP requests that fail: which faults may pass, how often to try, and how long to pause."""

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from retroformer.endpoint.secrets.redaction import redact
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import EndpointBusy, EndpointFailure, EndpointRefusal
from retroformer.method.records import Usage

if TYPE_CHECKING:
    from httpx import AsyncClient

    from retroformer.endpoint.http_client import Answer


TRIES = 3
_FIRST_PAUSE_SECONDS = 0.5
"""Pause before the first retry, doubled for each further one. Up to a quarter of it is randomly subtracted, so that
many clients do not retry at the same moment."""
_LONGEST_PAUSE_SECONDS = 7 * 86_400.0
"""Longest pause; a requested pause that is longer, or infinite, is cut to this."""
_TEMPORARY_STATUSES = {408, 409, 429}


def is_temporary(status: int) -> bool:
    """Return True if a request that was answered with this status code may succeed a little later."""
    return status in _TEMPORARY_STATUSES or status >= 500


def pause_after(attempt: int) -> float:
    """Return the pause in seconds after a failed attempt, counted from 1, if the server requests none."""
    return _FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1) * random.uniform(0.75, 1.0)


def requested_pause(headers: Mapping[str, str]) -> float | None:
    """Return the pause that a server requests, in seconds, or None if it requests none; names are in lower case."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        seconds = None if value is None else _seconds(value, unit)
        if seconds is not None and seconds > 0:
            return min(seconds, _LONGEST_PAUSE_SECONDS)
    return None


def _seconds(value: str, unit: float) -> float | None:
    """Convert a number or a date to seconds from now. The caller's comparison discards NaN."""
    with contextlib.suppress(ValueError):
        return float(value) / unit
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()


class Pace:
    """Limit on the requests in flight to one address, of one event loop."""

    def __init__(self) -> None:
        self.limit = math.inf
        """Number of requests that the address gets at once; infinite until it is overloaded for the first time."""
        self._in_flight = 0
        self._resumes_at = self._slowed_at = self._avoided_until = -math.inf
        self._waiting = deque[asyncio.Future[None]]()

    @property
    def is_paused(self) -> bool:
        """True if the address has asked for a pause that has not ended."""
        return max(self._resumes_at, self._avoided_until) > asyncio.get_running_loop().time()

    @property
    def load(self) -> tuple[bool, bool, float]:
        """How unfit the address is for the next request, as a sort key.

        True if it is avoided; True if the request would have to wait; and the requests in flight, or as a share of the
        limit.
        """
        now, ahead = asyncio.get_running_loop().time(), self._in_flight + len(self._waiting)
        waits = ahead + 1 > self.limit or self._resumes_at > now
        return self._avoided_until > now, waits, ahead / self.limit if waits else ahead

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Wait for a turn, and hold it. Yields the time of the event loop at which it began."""
        loop = asyncio.get_running_loop()
        try:
            while (pause := self._resumes_at - loop.time()) > 0 or self._in_flight + 1 > self.limit:
                if pause > 0:
                    await asyncio.sleep(pause)
                    continue
                waiting = loop.create_future()
                self._waiting.append(waiting)
                await waiting
        except asyncio.CancelledError:
            self._wake()  # If it was its turn, this goes to the next in the queue.
            raise
        self._in_flight += 1
        try:
            yield loop.time()
        finally:
            self._in_flight -= 1
            self._wake()

    def slow_down(self, began: float, pause: float) -> None:
        """Halve the limit, once for all requests that were in flight together, and send none for `pause` seconds.

        `began` is when the turn of the request began that met the overload.
        """
        now = asyncio.get_running_loop().time()
        self._resumes_at = max(self._resumes_at, now + pause)
        if began >= self._slowed_at:
            self.limit = max(1.0, min(self.limit, self._in_flight) / 2)
            self._slowed_at = now

    def avoid(self, seconds: float) -> None:
        """Send requests elsewhere for so long, if another address has room; nobody waits for this one."""
        self._avoided_until = max(self._avoided_until, asyncio.get_running_loop().time() + seconds)

    def speed_up(self) -> None:
        """Raise the limit a little after an answer."""
        self.limit += 1 / self.limit

    def _wake(self) -> None:
        """Wake as many as may begin; each checks again whether it may."""
        free = self.limit - self._in_flight
        while self._waiting and free >= 1:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                free -= 1


@dataclass
class ModelAddress:
    """An address that serves the model, with its client and its pace."""

    address: SecretUrl
    client: "AsyncClient"
    pace: Pace

    def url_of(self, path: str) -> str:
        """Return the URL of a path below the address, with the query of the address."""
        base, mark, query = self.address.secret_url().partition("?")
        return f"{base.rstrip('/')}{path}{mark}{query}"


def least_loaded(servers: Sequence[ModelAddress]) -> ModelAddress:
    """Return the server with room that has the fewest requests, else the one whose queue is the shortest."""
    return min(servers, key=lambda server: server.pace.load)


_REFUSAL_STATUSES = {401, 402, 403, 404}
"""Status codes for a wrong key, account, permission, or model and address, which would fail every call."""
_OVERLOAD_STATUSES = {429, 503, 529}
_REASON_CHARACTERS = 300
"""Length of a server's message in an error message."""


@dataclass
class RetriedRequest:
    """One request with its retries."""

    servers: Sequence[ModelAddress]
    path: str
    body: dict[str, Any]
    seconds: float
    lost_answer: Usage
    """Cost of an attempt whose response does not arrive."""
    sentence: Callable[[str, SecretUrl], str]
    """Turns what an address did into an error message."""
    lost: Usage = field(default_factory=Usage, init=False)
    """Cost of the attempts whose responses did not arrive."""

    def __post_init__(self) -> None:
        self._server = self.servers[0]
        self._may_be_charged = False
        """True once the body of an attempt has begun to be sent, until its response is read or is an error."""
        self._last_fault = ""

    async def answer(self) -> object:
        """Send the request and return the response, JSON or text.

        Raises:
            EndpointRefusal: the key, the account or the model is refused.
            EndpointBusy: the server requests a pause that is longer than the time left, or one after the last attempt.
            EndpointFailure: the server answered another error, or nothing that can be read in time.
        """
        try:
            # The HTTP client's own timeout restarts at every byte, so a response that trickles in would never time out.
            async with asyncio.timeout(self.seconds) as limit:
                return await self._tries(limit)
        except TimeoutError:
            self._count_lost_answer()
            before = f" (before that it {self._last_fault})" if self._last_fault else ""
            raise self._failure(f"gave no answer within {self.seconds:g} s{before}") from None
        except asyncio.CancelledError as stopped:
            self._count_lost_answer()
            stopped.usage = self.lost  # type: ignore[attr-defined]  # For errors.usage_of.
            raise

    async def _tries(self, limit: asyncio.Timeout) -> object:
        for attempt in range(1, 1 + TRIES):
            others = [server for server in self.servers if attempt == 1 or server is not self._server]
            self._server = least_loaded(others or self.servers)
            try:
                return await self._in_turn(limit)
            except _TemporaryFailure as fault:
                self._last_fault, asked = fault.what, fault.requested_pause
                is_free = [not server.pace.is_paused for server in self.servers if server is not self._server]
                if asked is not None and attempt < TRIES and any(is_free):
                    continue
                pause = pause_after(attempt) if asked is None else asked
                if pause < _left(limit) and attempt < TRIES:
                    await asyncio.sleep(pause)
                    continue
                if asked is None:
                    raise self._failure(fault.what) from None
                what = fault.what if attempt == TRIES else f"{fault.what}, and asks for a pause of {pause:g} s"
                raise EndpointBusy(self._sentence(what), retry_after_seconds=pause, usage=self.lost) from None
        raise AssertionError("unreachable: the last try returns or raises")

    async def _in_turn(self, limit: asyncio.Timeout) -> object:
        """Send the request when it is its turn at the address. Raises _TemporaryFailure, EndpointFailure."""
        seconds_left, pace = _left(limit), self._server.pace
        limit.reschedule(None)  # The wait for other requests is not the endpoint's time.
        async with pace.turn() as began:
            limit.reschedule(began + seconds_left)
            try:
                answer = await self._once()
            except _TemporaryFailure as fault:
                if fault.is_overload:
                    asked = fault.requested_pause or 0.0
                    waited_for = asked if asked < _left(limit) else 0.0
                    pace.slow_down(began, waited_for)
                    # Nobody waits for a pause beyond the time limit of a call; other addresses are asked meanwhile.
                    pace.avoid(asked - waited_for)
                raise
            pace.speed_up()
            return answer

    async def _once(self) -> object:
        """Send the request once. Raises _TemporaryFailure, EndpointFailure."""
        from retroformer.endpoint.http_client import NoAnswer, exchange

        url, events = self._server.url_of(self.path), {"trace": self._note}
        try:
            answer = await exchange(self._server.client, "POST", url, json=self.body, extensions=events)
            parsed = answer.parsed() if answer.status < 300 else None
        except NoAnswer as error:
            self._count_lost_answer()
            what = str(error)
            raise _TemporaryFailure(what, is_overload=True) if error.is_lost else self._failure(what) from None
        except (ValueError, RecursionError) as error:
            self._count_lost_answer()
            raise self._failure(f"{type(error).__name__}: {_shorten(str(error))}") from None
        self._may_be_charged = False
        if answer.status >= 300:
            raise self._status_fault(answer)
        return parsed

    async def _note(self, event: str, info: Mapping[str, Any]) -> None:
        """Follow the events of the HTTP client."""
        if event.endswith("send_request_body.started"):
            self._may_be_charged = True
        elif event.endswith("receive_response_headers.complete") and info["return_value"][1] >= 300:
            self._may_be_charged = False

    def _status_fault(self, answer: "Answer") -> Exception:
        error = _error_of(answer)
        words = _shorten(str(error.get("message") or error.get("detail") or error or ""))
        what = f"answered {answer.status}: {words}" if words else f"answered {answer.status}"
        if answer.status in _REFUSAL_STATUSES or "insufficient_quota" in (error.get("code"), error.get("type")):
            return EndpointRefusal(self._sentence(what), usage=self.lost)
        if not is_temporary(answer.status):
            return self._failure(what)
        is_overload = answer.status in _OVERLOAD_STATUSES
        return _TemporaryFailure(what, requested_pause(answer.headers), is_overload=is_overload)

    def _sentence(self, what: str) -> str:
        return self.sentence(what, self._server.address)

    def _failure(self, what: str) -> EndpointFailure:
        return EndpointFailure(self._sentence(what), usage=self.lost)

    def _count_lost_answer(self) -> None:
        """Add the price of a lost response, at most once per attempt."""
        if self._may_be_charged:
            self.lost += self.lost_answer
        self._may_be_charged = False


class _TemporaryFailure(Exception):
    """Failure of an attempt that a retry may fix.

    `requested_pause` is in seconds; `is_overload` says whether the address should get fewer requests.
    """

    def __init__(self, what: str, requested_pause: float | None = None, *, is_overload: bool = False) -> None:
        super().__init__(what)
        self.what, self.requested_pause, self.is_overload = what, requested_pause, is_overload


def _left(limit: asyncio.Timeout) -> float:
    """Return the seconds until a time limit."""
    return (limit.when() or math.inf) - asyncio.get_running_loop().time()


def _error_of(answer: "Answer") -> Mapping[str, Any]:
    """Return the server's own description of an error: its field `error`, or all of it."""
    error: object = answer.text
    with contextlib.suppress(ValueError, RecursionError):
        error = answer.parsed()
    if isinstance(error, dict):
        error = error.get("error") or error
    return error if isinstance(error, dict) else {"message": error}


def _shorten(words: str) -> str:
    # Secrets are hidden before the text is cut: half of a key would not be recognised.
    return redact(" ".join(words.split()))[:_REASON_CHARACTERS]
