"""Environment of verifiers that is played one turn at a time.

verifiers asks a client for the model's next turn. The client here waits until the next action is given.
"""

import asyncio
import json
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.clients.client import Client
from verifiers.types import Response, ResponseMessage
from verifiers.types import ToolCall as RequestedCall

from retroformer.agents.messages import clean_messages
from retroformer.environments.tasksets import not_reset, row_of
from retroformer.environments.tools import call_of
from retroformer.errors import EnvironmentFailure
from retroformer.integrations.verifiers.section import Verifiers
from retroformer.method.records import Task, Tool, Transition, content_text


class VerifiersEnvironment:
    """Episodes of any number of turns; every action is a turn of the model.

    The event loop runs only while waiting for the environment.
    """

    def __init__(self, section: Verifiers, environment: Any, tasks: Mapping[str, dict[str, Any]]) -> None:
        self._section, self._environment, self._tasks = section, environment, tasks
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)
        self._client = _Client()
        self._rollout: asyncio.Future[Any] | None = None
        self._steps = 0

    def reset(self, task: Task) -> Transition:
        """Start a rollout and show its prompt. Raises UnknownTask, EnvironmentFailure."""
        row = row_of(self._tasks, task)
        self._stop()
        self._steps, self._client = 0, _Client()
        rollout = self._environment.run_rollout(dict(row), self._client, "retroformer", {})
        self._rollout = started = asyncio.ensure_future(rollout, loop=self._loop)
        shown = self._advance(started)
        if shown.over:
            raise EnvironmentFailure("The environment of verifiers ended the rollout before the first turn.")
        return shown

    def step(self, action: str) -> Transition:
        """Give one turn of the model; at the end, the rubric's reward is the return. Raises EnvironmentFailure."""
        if self._rollout is None:
            raise not_reset()
        self._steps += 1
        self._client.answer(_response(action, self._client.tools, self._steps))
        shown = self._advance(self._rollout)
        if shown.over or self._steps < self._section.max_steps:
            return shown
        self._stop()
        return Transition(observation=shown.observation, truncated=True)

    def _advance(self, rollout: asyncio.Future[Any]) -> Transition:
        """Play until the model is asked, or to the end; return what the model is shown since its last turn."""
        asked = self._loop.create_task(self._client.asked.wait())
        self._loop.run_until_complete(asyncio.wait((asked, rollout), return_when=asyncio.FIRST_COMPLETED))
        if asked.done():
            self._client.asked.clear()
            return Transition(observation=_since_last_turn(self._client.prompt), tools=self._client.tools or None)
        asked.cancel()
        if error := rollout.exception():
            raise EnvironmentFailure(f"The environment of verifiers failed: {type(error).__name__}: {error}.")
        return self._end(rollout.result())

    def _end(self, output: Any) -> Transition:
        if error := output.get("error"):
            raise EnvironmentFailure(f"The environment of verifiers failed: {error['error_chain_repr']}.")
        reward = output.get("reward")
        if not isinstance(reward, int | float) or reward != reward:
            raise EnvironmentFailure(f"The rubric of the environment of verifiers gave no number, but {reward!r}.")
        if output.get("stop_condition") == "timeout_reached":
            raise EnvironmentFailure("The environment of verifiers did not finish the rollout in its time limit.")
        score = self._section.scaled(float(reward))
        truncated = output.get("stop_condition") == "max_turns_reached" and score < 1
        shown = _since_last_turn(output.get("completion") or ())
        return Transition(
            observation=f"{shown}\nThe rubric's reward is {reward:.3g}.".strip(),
            reward=score,
            terminated=not truncated,
            truncated=truncated,
            success=score == 1,
        )

    def _stop(self) -> None:
        """Abandon the rollout, if one is in progress."""
        if self._rollout is not None and not self._rollout.done():
            self._rollout.cancel()
            self._loop.run_until_complete(asyncio.wait((self._rollout,)))


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


def _response(action: str, tools: tuple[Tool, ...], number: int) -> Any:
    """Return an action as the model's turn; one in the form of a call is a call."""
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


def _since_last_turn(messages: Sequence[Any]) -> str:
    """Return what the messages after the model's last turn say."""
    roles = [message["role"] if isinstance(message, dict) else message.role for message in messages]
    place = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
    said = (content_text(message.content).strip() for message in clean_messages(messages[place:]))
    return "\n\n".join(text for text in said if text)
