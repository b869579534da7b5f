"""Renders trajectories as prompts, so that collect, train, serve and eval see the same tokens.

A prompt pack is one YAML file with the texts, in which nothing is substituted; this module arranges them. A trajectory
that is too long is shortened by repeatedly cutting, and marking, its longest observation; if that is not enough, the
longest of its other texts lose their middle.
"""

import re
from collections.abc import Callable, Iterable
from importlib import resources
from itertools import accumulate, chain
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from retroformer.errors import ConfigError, MissingInput
from retroformer.files.bounded import read_yaml
from retroformer.files.text import sha256_of
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Message, Record, Step, Task, Trajectory

_CUT = " [shortened]"
_EXAMPLE_ACTION = re.compile(r"^(?:Action \d+: |> (?!think:))(.+)$", re.MULTILINE)
_KEPT_CHARACTERS = 80
"""Number of characters of a text that are never cut."""
_LAST_ATTEMPT_CHARACTERS = 6000
"""Largest number of characters of a last attempt that the actor sees; a longer one is shortened."""

Render = Callable[[Trajectory, Memory], tuple[Message, ...]]
"""Function that renders a failure as the reflector's prompt."""


class PromptPack(Record):
    """Texts of the prompts for one environment."""

    grammar: Literal["put", "move"] | None = None
    """Grammar of the examples; ALFWorld only."""
    layout: Literal["labelled", "commands"] = "labelled"
    """Form of an attempt. labelled: `Thought N:`, `Action N:` and `Observation N:`, as ReAct on HotPotQA. commands:
    `> action` and below it the answer, with thoughts as actions `> think: ...`, as ReAct on ALFWorld."""
    act: str
    """Instruction for the actor, before the examples."""
    examples: tuple[str, ...]
    """Finished attempts in this layout; none for a zero-shot prompt."""
    examples_by_task: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default={})
    """Examples in place of `examples` for tasks whose id contains the key; the first such key counts."""
    most_examples: Annotated[int, Field(ge=1)] | None = None
    """Largest number of examples that a prompt shows; None: all."""
    solved: str = ""
    """Line below each example, which says that it was solved."""
    failures: tuple[str, ...] = ()
    """Failed attempts, each with the advice on it, after the examples of a model that acts and adapts (SALA)."""
    remember: str
    """Line above the reflections in the actor's memory."""
    last_attempt: str = "Your last attempt at this task, which was not good enough:"
    """Line above the last attempt, if it is in the actor's memory."""
    reflect: str
    """Instruction for the reflector."""
    reflect_examples: tuple[str, ...] = ()
    """Failed attempts, each with the advice on it, after the reflector's instruction."""
    ask: str
    """Line after the trajectory that asks for advice."""
    earlier: str = "which failed:"
    """Words above an earlier attempt that the reflector sees, after `Attempt 1, `."""
    lesson: str = "Advice after it:"
    """Words before the advice that was written about an earlier attempt."""
    latest: str = "The latest attempt:"
    """Line above the attempt that the reflector is to advise on, if it sees earlier ones, too."""
    advised: str = "Advice that this attempt was given:"
    """Line above the advice that this attempt was given."""
    failed: str = "The attempt failed"
    """Words below it; its ending follows in brackets, unless the agent judges itself."""
    revise: str = ""
    """Instruction for the actor with its own examples, in place of `act` and `examples` once the prompt has an earlier
    attempt or advice; programming only."""
    tests: str = ""
    """Instruction for the actor to write its own tests; programming only."""
    tools: str = "Work on the task by calling the tools, step by step."
    """Instruction for the actor with native tool calling."""
    judge: str = "You are shown one attempt of an agent at a task. Did it solve the task? Answer yes or no."
    """Instruction for a model that judges attempts."""
    verdict: str = "Solved, yes or no?"
    """Line after an attempt that asks that model for its verdict."""

    @property
    def sha256(self) -> str:
        """The sha256 of the texts, regardless of the pack's name, path and comments."""
        return sha256_of(self.model_dump(mode="json"))

    @property
    def actions(self) -> tuple[str, ...]:
        """Every action in the examples and failures, without thoughts."""
        examples = chain(self.examples, *self.examples_by_task.values(), self.failures)
        return tuple(_EXAMPLE_ACTION.findall("\n".join(examples)))

    def examples_for(self, task: Task) -> tuple[str, ...]:
        """Return the examples that the actor reads before this task, then the failures."""
        chosen = next((texts for key, texts in self.examples_by_task.items() if key in task.id), self.examples)
        ending = f"\n{self.solved}" if self.solved else ""
        return (*(example.rstrip() + ending for example in chosen[: self.most_examples]), *self.failures)


def load_pack(name: str, environment: str) -> PromptPack:
    """Load a pack by its name in retroformer/method/packs, or by the path of a YAML file.

    A pack with `extends: default` has the texts of that shipped pack of the environment, except for its own. Raises
    MissingInput if there is no such pack, or none that it extends, and ConfigError if the file is not a pack.
    """
    packs = Path(str(resources.files("retroformer.method") / "packs"))
    path = Path(name) if is_pack_file(name) else packs / f"{environment}-{name}.yaml"
    try:
        texts = read_yaml(path)
    except MissingInput as error:
        raise ConfigError(f"{path} is not a prompt pack: {error}") from None
    except FileNotFoundError:
        if is_pack_file(name):
            raise MissingInput(
                f"No prompt pack at {name!r}, neither where the command runs nor beside the experiment config: "
                "set actor.prompts to the path of a YAML file."
            ) from None
        names = sorted(pack.stem.removeprefix(f"{environment}-") for pack in packs.glob(f"{environment}-*.yaml"))
        choices = " or ".join((*names, "the path of a YAML file"))
        raise MissingInput(f"No prompt pack {name!r} for {environment}: set actor.prompts to {choices}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not a prompt pack: {' '.join(str(error).split())}.") from None
    if isinstance(texts, dict) and "extends" in texts:
        texts = _extended(path, texts, environment)
    try:
        return PromptPack.model_validate(texts)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{path} is not a prompt pack: {faults}.") from None


def _extended(path: Path, texts: dict[str, Any], environment: str) -> dict[str, Any]:
    """Return the texts of the pack that `extends` names, overridden by these texts."""
    base = texts["extends"]
    if not isinstance(base, str) or is_pack_file(base):
        raise ConfigError(f"{path} is not a prompt pack: extends: write the name of a shipped pack, not {base!r}.")
    own = {key: text for key, text in texts.items() if key != "extends"}
    try:
        return load_pack(base, environment).model_dump(exclude_unset=True) | own
    except MissingInput as error:
        raise MissingInput(f"{path} extends a pack that does not exist. {error}") from None


def is_pack_file(name: str) -> bool:
    """Return True if `actor.prompts` names a file rather than a shipped pack."""
    return Path(name).suffix in (".yaml", ".yml")


def react_prompt(pack: PromptPack, scene: Scene) -> tuple[Message, ...]:
    """Render the ReAct prompt for the next thought and action: instruction and examples, then this attempt so far."""
    attempt = f"{_advised_opening(pack, scene)}\n{_steps(pack, scene.steps)}{_cue(pack, scene.steps)}"
    return _chat(_paragraphs(pack.act, pack.examples_for(scene.task)), attempt)


def tool_prompt(pack: PromptPack, scene: Scene) -> tuple[Message, ...]:
    """Render the beginning of a conversation with tools: instruction, then memory and opening, without this attempt."""
    return _chat(pack.tools.strip(), _advised_opening(pack, scene))


def program_prompt(pack: PromptPack, scene: Scene) -> tuple[Message, ...]:
    """Render the prompt for a program: instruction and examples, then the last attempt and advice, then the problem.

    With `revise`, the examples of a revision are shown only where the prompt asks for one.
    """
    last = scene.memory.last_trajectory
    parts = []
    if last is not None and last.steps:
        parts.append(f"{pack.last_attempt.strip()}\n{last.steps[-1].action}\n\n{last.steps[-1].observation}")
    if scene.memory.reflections:
        parts.append(f"{pack.remember.strip()}{_bullets(scene.memory.reflections)}")
    revises = parts and pack.revise
    instruction = pack.revise.strip() if revises else _paragraphs(pack.act, pack.examples_for(scene.task))
    return _chat(instruction, "\n\n".join((*parts, scene.opening.strip())))


def conversation_prompt(pack: PromptPack, scene: Scene) -> tuple[Message, ...]:
    """Render an attempt as a chat: instruction and examples, memory and opening, then this attempt turn by turn."""
    turns = (
        Message(role=role, content=text)
        for step in scene.steps
        for role, text in (("assistant", step.action), ("user", step.observation))
    )
    return *_chat(_paragraphs(pack.act, pack.examples_for(scene.task)), _advised_opening(pack, scene)), *turns


def tests_prompt(pack: PromptPack, scene: Scene) -> tuple[Message, ...]:
    """Render the prompt for tests of a program that is not written yet; it holds only the problem."""
    return _chat(pack.tests.strip(), scene.opening.strip())


def reflection_prompt(pack: PromptPack, characters: int, failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """Render the reflector's prompt with the whole attempt, shortened to `characters` if it is longer.

    Earlier attempts come before it, as far as `characters` allow, the newest ones first.
    """
    opening, steps = _shorten_attempt(failure, characters)
    played = _steps(pack, steps)
    advice = _bullets(memory.reflections)
    tried = f"\n{pack.advised.strip()}{advice}\n" if advice else ""
    # The real ending is left out for an agent that judges its own attempts, as it would reveal the outcome.
    how = f" ({failure.ending.value})" if failure.judged is None else ""
    earlier = _earlier_attempts(pack, characters - len(opening) - len(played), memory)
    attempt = f"{opening.strip()}\n{earlier}{played}{tried}\n{pack.failed.strip()}{how}."
    return _chat(_paragraphs(pack.reflect, pack.reflect_examples), f"{attempt}\n{pack.ask.strip()}")


def _earlier_attempts(pack: PromptPack, characters: int, memory: Memory) -> str:
    """Return earlier attempts with their advice, oldest first; the oldest are dropped if there is no room for them."""
    shown = list[str]()
    for number, lesson in reversed(list(enumerate(memory.earlier, start=1))):
        advice = " ".join(lesson.advice.split()) or "none"
        steps = _steps(pack, shorten(lesson.attempt.steps, characters))
        text = f"Attempt {number}, {pack.earlier.strip()}\n{steps}{pack.lesson.strip()} {advice}\n\n"
        characters -= len(text)
        if characters < 0:
            break
        shown.append(text)
    latest = f"{pack.latest.strip()}\n" if shown else ""
    return "".join(reversed(shown)) + latest


def adaptation_prompt(pack: PromptPack, failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """Render the actor's own prompt up to the end of its attempt, then the request for advice (SALA: one model)."""
    scene = Scene(task=failure.task, opening=failure.opening, steps=failure.steps, memory=memory)
    system, user = react_prompt(pack, scene)
    so_far = user.content.removesuffix(_cue(pack, failure.steps))
    return (system, Message(role="user", content=f"{so_far}{pack.ask.strip()}"))


def judge_prompt(pack: PromptPack, characters: int, attempt: Trajectory) -> tuple[Message, ...]:
    """Render the attempt as for a reflector but without the verdict, and the question whether it solved the task."""
    opening, steps = _shorten_attempt(attempt, characters)
    return _chat(pack.judge.strip(), f"{opening.strip()}\n{_steps(pack, steps)}\n{pack.verdict.strip()}")


def _shorten_attempt(attempt: Trajectory, characters: int) -> tuple[str, tuple[Step, ...]]:
    """Return opening and steps in about `characters`; an opening that is longer by itself is cut to half of them."""
    opening = attempt.opening
    if len(opening) > characters:
        opening = _without_middle(opening, characters // 2)
    return opening, shorten(attempt.steps, max(0, characters - len(opening)))


def shorten(steps: tuple[Step, ...], characters: int) -> tuple[Step, ...]:
    """Cut the longest texts until the steps fit into `characters` or nothing more may be cut.

    Observations lose their end, but for the last one, which shows why the attempt failed. Only where that is not enough
    do thoughts, actions and the last observation lose their middle.
    """
    texts = [step.observation for step in steps]
    excess = sum(len(step.thought) + len(step.action) + len(step.observation) for step in steps) - characters
    while excess > 0 and texts[:-1]:
        longest = max(range(len(texts) - 1), key=lambda index: len(texts[index]))
        kept = max(_KEPT_CHARACTERS, len(texts[longest]) - excess - len(_CUT))
        if len(texts[longest]) <= _KEPT_CHARACTERS + len(_CUT):
            break
        cut = texts[longest].removesuffix(_CUT)[:kept] + _CUT
        excess -= len(texts[longest]) - len(cut)
        texts[longest] = cut
    shorter = tuple(step.model_copy(update={"observation": text}) for step, text in zip(steps, texts, strict=True))
    return _cut_middles(shorter, excess) if steps and excess > 0 else shorter


def _cut_middles(steps: tuple[Step, ...], excess: int) -> tuple[Step, ...]:
    """Cut thoughts, actions and the last observation, the longest down to a common length, by `excess` characters."""
    places = [(number, name) for number in range(len(steps)) for name in ("thought", "action")]
    places.append((len(steps) - 1, "observation"))
    lengths = sorted((len(getattr(steps[number], name)) for number, name in places), reverse=True)
    common = max((total - excess) // count for count, total in enumerate(accumulate(lengths), start=1))
    most, cut = max(_KEPT_CHARACTERS + len(_CUT), common), list(steps)
    for number, name in places:
        cut[number] = cut[number].model_copy(update={name: _without_middle(getattr(cut[number], name), most)})
    return tuple(cut)


def _without_middle(text: str, most: int) -> str:
    """Return the text, or if it is longer than `most`, its first and last characters with a mark between them."""
    end = (most - len(_CUT)) // 2
    return text if len(text) <= most else f"{text[: most - len(_CUT) - end]}{_CUT}{text[len(text) - end :]}"


def _chat(system: str, user: str) -> tuple[Message, Message]:
    return Message(role="system", content=system), Message(role="user", content=user)


def _bullets(texts: Iterable[str]) -> str:
    return "".join(f"\n- {' '.join(text.split())}" for text in texts)


def _paragraphs(instruction: str, examples: Iterable[str]) -> str:
    return "\n\n".join(text.strip() for text in (instruction, *examples))


def _advised_opening(pack: PromptPack, scene: Scene) -> str:
    """Return the opening with the last attempt and the advice of the memory before it."""
    reflections = _bullets(scene.memory.reflections)
    advice = f"{pack.remember.strip()}{reflections}\n\n" if reflections else ""
    if (last := scene.memory.last_trajectory) is not None:
        steps = shorten(last.steps, _LAST_ATTEMPT_CHARACTERS)
        advice = f"{pack.last_attempt.strip()}\n{_steps(pack, steps)}\n{advice}"
    return f"{advice}{scene.opening.strip()}"


def _cue(pack: PromptPack, steps: tuple[Step, ...]) -> str:
    """Return the text after which the model writes its next step."""
    return ">" if pack.layout == "commands" else f"Thought {len(steps) + 1}:"


def _steps(pack: PromptPack, steps: tuple[Step, ...]) -> str:
    commands = pack.layout == "commands"
    text = ""
    for number, step in enumerate(steps, start=1):
        thought = " ".join(step.thought.split())
        if step.thought:
            text += f"> think: {thought}\n" if commands else f"Thought {number}: {thought}\n"
        if commands:
            text += f"> {step.action}\n{step.observation}\n"
        else:
            text += f"Action {number}: {step.action}\nObservation {number}: {step.observation}\n"
    return text
