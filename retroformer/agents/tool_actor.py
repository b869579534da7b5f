"""Actor that uses the native tool calling of a chat endpoint.

An environment offers its tools, or its text actions become the one tool `act`. A call becomes an action in the grammar
of the environment, so that attempts are stored, advised and reported as those of any actor. An answer without a call
is an action as it stands. A call that cannot be done is the agent's own failure: it reads why, and goes on.
"""

from retroformer.endpoint.answers import RequestedCall, conversation, read_answer, tools_of_request
from retroformer.endpoint.model import LanguageModel
from retroformer.prompts import PromptPack, tool_prompt
from retroformer.protocols import Move, Scene
from retroformer.records import Tool
from retroformer.tools import ToolCall, ToolFault, action_of, read_arguments

_SHOWN_ACTIONS = 8
"""Number of the pack's example actions that describe the tool `act`."""


class ToolActor:
    """A frozen language model that calls tools."""

    def __init__(
        self,
        model: LanguageModel,
        pack: PromptPack,
        temperature: float,
        max_new_tokens: int,
        tools: tuple[Tool, ...] | None,
    ) -> None:
        """Create it with the tools of the environment; None: its text actions are the tool `act`."""
        self._model, self._pack, self._tools = model, pack, tools
        self._temperature, self._max_new_tokens = temperature, max_new_tokens

    async def act(self, scene: Scene) -> Move:
        """Choose the next calls. Raises EndpointFailure."""
        tools = self._offered(scene)
        message, usage = await self._model.converse(
            conversation(tool_prompt(self._pack, scene), scene.steps, tools),
            tools_of_request(tools),
            temperature=self._temperature,
            max_new_tokens=self._max_new_tokens,
            seed=scene.seed if self._temperature else None,
        )
        answer = read_answer(message)
        if not answer.calls:
            return Move(action=answer.text, usage=usage)
        first, *then = (_move(call, tools) for call in answer.calls)
        return first.model_copy(update={"thought": answer.text, "usage": usage, "then": tuple(then)})

    def _offered(self, scene: Scene) -> tuple[Tool, ...]:
        if scene.tools is not None:
            return scene.tools
        return (act_tool(self._pack, scene.choices),) if self._tools is None else self._tools


def act_tool(pack: PromptPack, choices: tuple[str, ...]) -> Tool:
    """Return the tool for environments whose actions are texts, held to `choices` if the environment lists them."""
    examples = list(dict.fromkeys(pack.actions))[:_SHOWN_ACTIONS]
    shown = f", such as {'; '.join(examples)}" if examples else ""
    action = {"type": "string", "description": f"The action{shown}"} | ({"enum": list(choices)} if choices else {})
    return Tool(
        name="act",
        description="Do one action in the environment.",
        parameters={"type": "object", "properties": {"action": action}, "required": ["action"]},
        form="{action}",
    )


def _move(call: RequestedCall, tools: tuple[Tool, ...]) -> Move:
    try:
        return Move(action=action_of(ToolCall(call.name, read_arguments(call.name, call.arguments)), tools))
    except ToolFault as fault:
        return Move(action=call.written, refusal=str(fault))
