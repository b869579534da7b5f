"""A rollout of verifiers that is played one turn at a time.

verifiers asks a client for the model's next turn. The client here waits until the next action is given.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from verifiers.clients.client import Client
from verifiers.types import Response, ResponseMessage
from verifiers.types import ToolCall as RequestedCall

from retroformer.agents.messages import kept_messages
from retroformer.environments.tools import call_of
from retroformer.errors import EnvironmentFailure
from retroformer.method.conversation import content_text
from retroformer.method.records import Tool


class Ended(NamedTuple):
    """End of a rollout."""

    text: str
    """What the environment said after the last turn; it may be empty."""
    reward: float
    truncated: bool


class Rollout:
    """One rollout. The event loop runs only while waiting for the environment."""

    def __init__(self, environment: Any, row: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._client = loop, _Client()
        rollout = environment.run_rollout(row, self._client, "retroformer", {})
        self._playing = loop.create_task(_started(rollout))
        self._turns = 0

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools that the environment offers in this turn."""
        return self._client.tools

    def advance(self) -> str | Ended:
        """Play until the model is asked: return what it is shown since its last turn, or the end.

        Raises:
            EnvironmentFailure: the environment failed.
        """
        asked = self._loop.create_task(self._client.asked.wait())
        self._loop.run_until_complete(asyncio.wait((asked, self._playing), return_when=asyncio.FIRST_COMPLETED))
        if asked.done():
            self._client.asked.clear()
            return _since_last_turn(self._client.prompt)
        asked.cancel()
        if error := self._playing.exception():
            raise EnvironmentFailure(f"The environment of verifiers failed: {type(error).__name__}: {error}.")
        return _end(self._playing.result())

    def answer(self, action: str) -> str | Ended:
        """Give the model's turn and play on. An action in the form of a call is a call. Raises EnvironmentFailure."""
        self._turns += 1
        self._client.answer(_response(action, self.tools, self._turns))
        return self.advance()

    def stop(self) -> None:
        """Abandon the rollout."""
        if not self._playing.done():
            self._playing.cancel()
            self._loop.run_until_complete(asyncio.wait((self._playing,)))


class _Client:
    """What verifiers takes for the client of a model."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.prompt: Sequence[Any] = ()
        self.tools: tuple[Tool, ...] = ()
        self._answer: asyncio.Future[Any] | None = None

    def answer(self, response: Any) -> None:
        assert self._answer is not None, "the model is asked before it answers"
        self._answer.set_result(response)

    async def get_response(
        self, prompt: Sequence[Any], model: str, sampling_args: Any, tools: Sequence[Any] | None = None, **_: Any
    ) -> Any:
        self.prompt = prompt
        self.tools = tuple(
            Tool(name=tool.name, description=tool.description or "", parameters=dict(tool.parameters))
            for tool in tools or ()
        )
        self._answer = asyncio.get_running_loop().create_future()
        self.asked.set()
        return await self._answer

    async def close(self) -> None:
        """Do nothing: there is no connection."""


Client.register(_Client)


async def _started(rollout: Any) -> Any:
    return await rollout


def _response(action: str, tools: tuple[Tool, ...], number: int) -> Any:
    call = call_of(action, tools)
    calls = None
    if call is not None:
        calls = [RequestedCall(id=f"call_{number}", name=call.name, arguments=json.dumps(call.arguments))]
    message = ResponseMessage(
        content="" if calls else action,
        tool_calls=calls,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return Response(id=f"turn_{number}", created=int(time.time()), model="retroformer", message=message)


def _end(output: Any) -> Ended:
    """Return the end of a finished rollout. Raises EnvironmentFailure."""
    if error := output.get("error"):
        raise EnvironmentFailure(f"The environment of verifiers failed: {error['error_chain_repr']}.")
    reward = output.get("reward")
    if not isinstance(reward, int | float) or reward != reward:
        raise EnvironmentFailure(f"The rubric of the environment of verifiers gave no number, but {reward!r}.")
    if output.get("stop_condition") == "timeout_reached":
        raise EnvironmentFailure("The environment of verifiers did not finish the rollout in its time limit.")
    truncated = output.get("stop_condition") == "max_turns_reached"
    return Ended(_since_last_turn(output.get("completion") or ()), float(reward), truncated)


def _since_last_turn(messages: Sequence[Any]) -> str:
    """Return what the messages after the model's last turn say."""
    roles = [message["role"] if isinstance(message, dict) else message.role for message in messages]
    place = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
    said = (content_text(message.content).strip() for message in kept_messages(messages[place:]))
    return "\n\n".join(text for text in said if text)
