"""The actors of every environment: ReAct, native tool calling, free answers and a choice among listed actions.

Each is a frozen language model. An environment offers actors of its own in `Extras.actors`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from retroformer.config.experiment import Experiment
from retroformer.endpoint.answers import RequestedCall, read_call, read_parts, strip_thinking
from retroformer.endpoint.model import Completion, LanguageModel, Prompt
from retroformer.environments.extras import ActorKind, ActorParts
from retroformer.environments.registry import extras
from retroformer.environments.tools import ToolAction, ToolFault, action_of, call_of, read_arguments
from retroformer.errors import ConfigError
from retroformer.files.text import storable
from retroformer.method.prompts import PromptPack, conversation_prompt, react_prompt, tool_prompt
from retroformer.method.protocols import Actor, Move, OfferedActions, Scene
from retroformer.method.records import Message, Step, Tool

Choices = Callable[[Scene], Sequence[str]]
"""Function that lists the possible actions of a scene."""
REACT, TOOLS, CHOOSER = "react", "tools", "chooser"
_STOP = {"labelled": ("\nObservation",), "commands": ("\n",)}
"""Text at which the ReAct model stops writing, by the pack's layout."""
_ACTION = re.compile(r"^\s*\**action\b[^:\n]*:\**[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_NEXT_STEP = re.compile(r"^\s*\**(observation|thought|question)\b[^:\n]*:", re.IGNORECASE | re.MULTILINE)
_LABEL = re.compile(r"^\s*\**thought\b[^:\n]*:\**", re.IGNORECASE)
_CALL = re.compile(r"\b(search|lookup|finish|click|think)\s*\[", re.IGNORECASE)
_SHOWN_ACTIONS = 8
"""Number of the pack's example actions that describe the tool `act`."""


def actor_kind(experiment: Experiment) -> ActorKind:
    """Return the actor that `actor.kind` names. Raises ConfigError if the environment has no such actor."""
    offered = actor_kinds(experiment)
    kind, environment = experiment.actor.kind, experiment.environment.name
    if kind not in offered:
        raise ConfigError(f"The {kind} actor does not play {environment}: set actor.kind to {' or '.join(offered)}.")
    return offered[kind]


def actor_kinds(experiment: Experiment) -> dict[str, ActorKind]:
    """Return the actors that can play the environment of this config, by name."""
    offered = extras(experiment.environment)
    general = {REACT: ActorKind(ReactActor.build)} if offered.plays_text else {}
    if offered.plays_text or offered.tools is not None:
        general[TOOLS] = ActorKind(_tools)
    if offered.choices is not None:
        general[CHOOSER] = _chooser(offered.choices)
    return general | dict(offered.actors)


def scripted_actor(experiment: Experiment) -> str:
    """Return the name of an actor that is a program. Raises ConfigError if the environment has none."""
    programs = [name for name, kind in actor_kinds(experiment).items() if not kind.asks_model]
    if not programs:
        raise ConfigError(f"There is no scripted actor for {experiment.environment.name}, which a warm start needs.")
    return programs[0]


@dataclass(frozen=True)
class ModelActor:
    """A frozen language model, and how it is asked."""

    model: LanguageModel
    pack: PromptPack
    temperature: float
    max_new_tokens: int

    @classmethod
    def build(cls, parts: ActorParts) -> Self:
        """Return the actor of a config."""
        return cls(parts.model(), parts.pack(), parts.settings.temperature, parts.settings.max_new_tokens)

    async def complete(self, prompt: Prompt, scene: Scene, stop: Sequence[str] = ()) -> Completion:
        """Ask the model, with a seed if it samples. Raises EndpointFailure."""
        return await self.model.complete(
            prompt, temperature=self.temperature, max_new_tokens=self.max_new_tokens, stop=stop, seed=self.seed(scene)
        )

    def seed(self, scene: Scene) -> int | None:
        return scene.seed if self.temperature else None


class AnsweringActor(ModelActor):
    """Actor in a chat with the environment: observations are the user's turns, and all that it writes is its action."""

    async def act(self, scene: Scene) -> Move:
        """Answer the last observation. Raises EndpointFailure."""
        completion = await self.complete(conversation_prompt(self.pack, scene), scene)
        return Move(action=completion.text.strip(), usage=completion.usage)


ANSWER = ActorKind(AnsweringActor.build)
"""The answering actor, for environments whose actions are free text of any number of lines."""


class ReactActor(ModelActor):
    """ReAct (Yao et al. 2023): a model that thinks, then acts; one thought and one action per call."""

    async def act(self, scene: Scene) -> Move:
        """Choose the next thought and action. Raises EndpointFailure."""
        completion = await self.complete(react_prompt(self.pack, scene), scene, _STOP[self.pack.layout])
        thought, action = ("", command(completion.text)) if self.pack.layout == "commands" else parse(completion.text)
        return Move(thought=thought, action=action, usage=completion.usage)


def command(text: str) -> str:
    """Return the first line of a model's text as an action; a thought is the action `think: ...`."""
    lines = (line.strip().removeprefix(">").strip() for line in text.splitlines())
    return next((line.strip("`*") for line in lines if line), "")


def parse(text: str) -> tuple[str, str]:
    """Parse the first thought and the first action from a model's text.

    Chat models write several steps at once, bold their labels, leave labels out or invent the observation; everything
    after the first action is dropped. If there is no action, the last line is used as one: the environment answers
    actions that make no sense.
    """
    text = _LABEL.sub("", text.strip(), count=1).strip()
    if marked := _ACTION.search(text):
        thought, action = text[: marked.start()], marked.group(1)
        if not action.strip():
            action = next((line for line in text[marked.end() :].splitlines() if line.strip()), "")
    else:
        if later := _NEXT_STEP.search(text):
            text = text[: later.start()]
        lines = [line for line in text.splitlines() if line.strip()]
        calls = [line for line in lines if _CALL.search(line)]
        action = calls[0] if calls else lines[-1] if lines else ""
        thought = text.partition(action)[0] if action else ""
        if called := _CALL.search(action):
            thought, action = thought + action[: called.start()], action[called.start() :]
    return " ".join(thought.split()), action.strip().strip("`*").removeprefix(">").strip()


@dataclass(frozen=True)
class ToolActor(ModelActor):
    """Actor that uses the native tool calling of a chat endpoint.

    An environment offers its tools, or its text actions become the one tool `act`. A call becomes an action in the
    grammar of the environment, so that attempts are stored, advised and reported as those of any actor. An answer
    without a call is an action as it stands. A call that cannot be done is the agent's own failure: it reads why, and
    goes on.
    """

    tools: tuple[Tool, ...] | None = None
    """Tools of the environment; None: its text actions are the tool `act`."""

    async def act(self, scene: Scene) -> Move:
        """Choose the next calls. Raises EndpointFailure."""
        tools = self._offered(scene)
        message, usage = await self.model.converse(
            conversation(tool_prompt(self.pack, scene), scene, tools),
            tools_of_request(tools),
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed(scene),
        )
        text, calls = read_answer(message)
        if not calls:
            return Move(action=text, usage=usage, message=message)
        first, *then = (_move(call, tools) for call in calls)
        update = {"thought": text, "usage": usage, "then": tuple(then), "message": message}
        return first.model_copy(update=update)

    def _offered(self, scene: Scene) -> tuple[Tool, ...]:
        if scene.tools is not None:
            return scene.tools
        return (act_tool(self.pack, scene.choices),) if self.tools is None else self.tools


def _tools(parts: ActorParts) -> Actor:
    endpoint, offered = parts.settings.endpoint, extras(parts.section).tools
    if endpoint.base_url is None or endpoint.api != "chat":
        raise ConfigError(
            "The tools actor needs a chat endpoint with native tool calling, which our own server lacks: set "
            "actor.endpoint.base_url and api=chat, or actor.kind=react."
        )
    return replace(ToolActor.build(parts), tools=None if offered is None else offered(parts.section))


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
        return Move(action=action_of(ToolAction(call.name, read_arguments(call.name, call.arguments)), tools))
    except ToolFault as fault:
        return Move(action=call.written, refusal=str(fault))


def read_answer(message: Mapping[str, Any]) -> tuple[str, Sequence[RequestedCall]]:
    """Return text and calls of an assistant's message without thinking, whatever else is in it."""
    content, called = message.get("content"), message.get("tool_calls")
    parts = read_parts(content if isinstance(content, list) else ())
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in parts.content)
    listed = called if isinstance(called, list) else [message["function_call"]] if message.get("function_call") else []
    return storable(strip_thinking(text)).strip(), list(map(read_call, listed)) or parts.calls


def tools_of_request(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Return the field `tools` of a request."""
    return [{"type": "function", "function": tool.model_dump(exclude={"form"})} for tool in tools]


def conversation(beginning: Sequence[Message], scene: Scene, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return an attempt so far as messages: each answer of the model as it came, then what its calls led to.

    Providers demand their own ids and signatures back. A step whose answer is not known, or has a call that cannot be
    read, is written anew; an action that is no readable call is an assistant's text, since servers refuse a call whose
    arguments are not JSON.
    """
    turns: list[dict[str, Any]] = [message.model_dump() for message in beginning]
    steps = list(enumerate(scene.steps))
    while steps:
        number, step = steps[0]
        message = scene.answers[number] if number < len(scene.answers) else None
        calls = read_answer(message)[1] if message is not None else ()
        if message is not None and all(map(_is_readable, calls)):
            taken = [later for _, later in steps[: len(calls) or 1]]
            turns += _answer_turns(message, calls, taken)
            del steps[: len(taken)]
            continue
        call = call_of(step.action, tools)
        # Mistral accepts ids of nine letters and digits alone.
        turns += _text_turns(step) if call is None else _call_turns(step, call, f"call{number:05}")
        del steps[0]
    return turns


def _is_readable(call: RequestedCall) -> bool:
    try:
        read_arguments(call.name, call.arguments)
    except ToolFault:
        return False
    # Anthropic's models write no arguments as a blank text, which servers refuse.
    return bool(call.name and call.id and call.arguments is not None)


def _answer_turns(
    message: Mapping[str, Any], calls: Sequence[RequestedCall], steps: Sequence[Step]
) -> list[dict[str, Any]]:
    said = message.get("content")
    answer = {"role": "assistant", **message, "content": strip_thinking(said) if isinstance(said, str) else said}
    if not calls:
        return [answer, {"role": "user", "content": steps[0].observation}]
    results = zip(calls, steps, strict=False)
    return [answer, *({"role": "tool", "tool_call_id": call.id, "content": step.observation} for call, step in results)]


def _call_turns(step: Step, call: ToolAction, identity: str) -> list[dict[str, Any]]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    requested = {"id": identity, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": step.thought, "tool_calls": [requested]},
        {"role": "tool", "tool_call_id": identity, "content": step.observation},
    ]


def _text_turns(step: Step) -> list[dict[str, Any]]:
    said = "\n".join(text for text in (step.thought, step.action) if text)
    return [{"role": "assistant", "content": said}, {"role": "user", "content": step.observation}]


@dataclass(frozen=True)
class Chooser:
    """Actor that asks its model for one of the actions that `choices` lists, as a continuation of plain text.

    It plays every environment that lists what can be done, and `train sac` can train it. Its endpoint must serve
    completions; only the experiment's own server can hold a model to listed texts.
    """

    model: LanguageModel
    choices: Choices
    temperature: float
    max_new_tokens: int

    async def act(self, scene: Scene) -> Move:
        """Return the next action. Raises EndpointFailure, or ConfigError if none is listed."""
        offered = offer_actions(self.choices, scene)
        completion = await self.model.complete(
            offered.prompt,
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            stop=["\n"],
            seed=scene.seed if self.temperature else None,
            choices=offered.continuations,
        )
        actions = dict(zip(offered.continuations, offered.actions, strict=True))
        # Without room for the whole choice its beginning is sent, and the environment answers that it is none.
        return Move(
            action=actions.get(f"{completion.text}\n", completion.text.strip() or "nothing"), usage=completion.usage
        )


def offer_actions(choices: Choices, scene: Scene) -> OfferedActions:
    """Return the attempt so far, ending with `>`, and the actions that may follow. Raises ConfigError if none may."""
    listed = {f" {' '.join(action.split())}\n": action for action in choices(scene)}
    if not listed:
        raise ConfigError(
            "actor.kind=chooser needs an environment that lists the possible actions (departure 26), and a state of "
            f"{scene.task.environment} has none: set actor.kind or environment.name to another."
        )
    advice = "".join(f"Advice: {' '.join(text.split())}\n" for text in scene.memory.reflections)
    played = "".join(f"> {step.action}\n{step.observation}\n" for step in scene.steps)
    return OfferedActions(f"{advice}{scene.opening}\n{played}>", tuple(listed), tuple(listed.values()))


def _chooser(choices: Choices) -> ActorKind:
    def build(parts: ActorParts) -> Actor:
        return Chooser(parts.model(), choices, parts.settings.temperature, parts.settings.max_new_tokens)

    def offers(_: Any, scene: Scene) -> OfferedActions:
        return offer_actions(choices, scene)

    return ActorKind(build, reads_pack=False, reads_last_attempt=False, offers=offers)
