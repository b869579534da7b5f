"""The only place where a trajectory becomes a prompt, so that collect, train, serve and eval see the same tokens.

A prompt pack is one YAML file with the words; this module arranges them. An over-long trajectory is shortened in one
declared way: the longest observation is cut first, again and again, and says so; the end is never cut.
"""

import re
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError

from retroformer.bounded_yaml import read_yaml
from retroformer.config import Experiment
from retroformer.environments.alfworld.digest import digest
from retroformer.errors import ConfigError, MissingInput
from retroformer.protocols import Scene
from retroformer.records import Memory, Message, Record, Step, Trajectory

_CUT = " [shortened]"
_EXAMPLE_ACTION = re.compile(r"^Action \d+: (.+)$", re.MULTILINE)
_KEPT_CHARACTERS = 80
"""An observation is never cut below this."""
_LAST_ATTEMPT_CHARACTERS = 6000
"""A longer last attempt is shortened before the actor sees it."""

Render = Callable[[Trajectory, Memory], tuple[Message, ...]]
"""What turns a failure into the reflector's prompt."""


class Pack(Record):
    """The words of the prompts for one environment."""

    grammar: Literal["put", "move"] | None = None
    """ALFWorld only: the grammar that the examples speak."""
    act: str
    """What the actor is told before the examples."""
    examples: Annotated[tuple[str, ...], Field(min_length=1)]
    """Finished attempts in the Thought / Action / Observation format."""
    remember: str
    """The line above the reflections that the actor carries."""
    last_attempt: str = "Your last attempt at this task, which was not good enough:"
    """The line above the last attempt, where the actor carries that."""
    reflect: str
    """What the reflector is told."""
    ask: str
    """The line after the trajectory that asks for advice."""
    tests: str = ""
    """Programming only: what the actor is told when it is to write tests of its own."""
    judge: str = "You are shown one attempt of an agent at a task. Did it solve the task? Answer yes or no."
    """What a model that judges attempts is told."""

    @property
    def actions(self) -> tuple[str, ...]:
        """Every action that the examples do."""
        return tuple(_EXAMPLE_ACTION.findall("\n".join(self.examples)))


def load_pack(name: str, environment: str) -> Pack:
    """A pack by its name in retroformer/packs, or by the path of a YAML file.

    Raises:
        MissingInput: there is no such pack.
        ConfigError: the file is not a pack.
    """
    packs = Path(str(resources.files("retroformer") / "packs"))
    path = Path(name) if is_pack_file(name) else packs / f"{environment}-{name}.yaml"
    try:
        return Pack.model_validate(read_yaml(path))
    except MissingInput as error:
        raise ConfigError(f"{path} is not a prompt pack: {error}") from None
    except FileNotFoundError:
        if is_pack_file(name):
            raise MissingInput(
                f"No prompt pack at {name!r}, neither where the command runs nor beside the experiment config: "
                "set actor.prompts to the path of a YAML file."
            ) from None
        known = sorted(pack.stem for pack in packs.glob("*.yaml"))
        raise MissingInput(f"No prompt pack {name!r} for {environment}: known are {', '.join(known)}.") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{path} is not a prompt pack: {faults}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not a prompt pack: {' '.join(str(error).split())}.") from None


def is_pack_file(name: str) -> bool:
    """Whether `actor.prompts` names a file rather than a pack that is shipped."""
    return Path(name).suffix in (".yaml", ".yml")


def react_prompt(pack: Pack, scene: Scene) -> tuple[Message, ...]:
    """The ReAct prompt for the next thought and action: instruction and examples, then this attempt so far."""
    examples = "\n\n".join(example.strip() for example in pack.examples)
    reflections = "".join(f"\n- {' '.join(text.split())}" for text in scene.memory.reflections)
    advice = f"{pack.remember.strip()}{reflections}\n\n" if reflections else ""
    if (last := scene.memory.last_trajectory) is not None:
        steps = shorten(last.steps, _LAST_ATTEMPT_CHARACTERS)
        advice = f"{pack.last_attempt.strip()}\n{_react_steps(steps)}\n{advice}"
    number = len(scene.steps) + 1
    attempt = f"{scene.opening.strip()}\n{_react_steps(scene.steps)}Thought {number}:"
    return (
        Message(role="system", content=f"{pack.act.strip()}\n\n{examples}"),
        Message(role="user", content=f"{advice}{attempt}"),
    )


def program_prompt(pack: Pack, scene: Scene) -> tuple[Message, ...]:
    """The prompt for a program: instruction and examples, then the last attempt and advice, then the problem."""
    examples = "\n\n".join(example.strip() for example in pack.examples)
    last, reflections = scene.memory.last_trajectory, scene.memory.reflections
    parts = []
    if last is not None and last.steps:
        parts.append(f"{pack.last_attempt.strip()}\n{last.steps[-1].action}\n\n{last.steps[-1].observation}")
    if reflections:
        parts.append("\n".join((pack.remember.strip(), *(f"- {' '.join(text.split())}" for text in reflections))))
    return (
        Message(role="system", content=f"{pack.act.strip()}\n\n{examples}"),
        Message(role="user", content="\n\n".join((*parts, scene.opening.strip()))),
    )


def tests_prompt(pack: Pack, scene: Scene) -> tuple[Message, ...]:
    """The prompt for tests of a program that is yet to be written; nothing but the problem is known then."""
    return (Message(role="system", content=pack.tests.strip()), Message(role="user", content=scene.opening.strip()))


def reflection_renderer(experiment: Experiment) -> Render:
    """How this experiment shows a failure to its reflector."""
    if experiment.reflector.view == "compact":
        return compact_reflection_prompt
    pack = load_pack(experiment.actor.prompts, experiment.environment.name)
    if experiment.reflector.view == "actor":
        if experiment.actor.kind != "react":
            raise ConfigError("reflector.view=actor goes on in the prompt of a ReAct actor: set actor.kind=react.")
        return partial(adaptation_prompt, pack)
    return partial(reflection_prompt, pack, experiment.reflector.prompt_characters)


def reflection_prompt(pack: Pack, characters: int, failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """The whole attempt in words, shortened to `characters` where it is longer."""
    steps = shorten(failure.steps, max(0, characters - len(failure.opening)))
    earlier = "".join(f"\n- {' '.join(text.split())}" for text in memory.reflections)
    tried = f"\nAdvice that this attempt was given:{earlier}\n" if earlier else ""
    # Who judges its attempts itself is not told by the way how they really ended.
    how = f" ({failure.ending.value})" if failure.judged is None else ""
    attempt = f"{failure.opening.strip()}\n{_react_steps(steps)}{tried}\nThe attempt failed{how}."
    return (
        Message(role="system", content=pack.reflect.strip()),
        Message(role="user", content=f"{attempt}\n{pack.ask.strip()}"),
    )


def adaptation_prompt(pack: Pack, failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """The actor's own prompt where its attempt ended, and the question what to do instead (SALA: one model)."""
    scene = Scene(task=failure.task, opening=failure.opening, steps=failure.steps, memory=memory)
    system, user = react_prompt(pack, scene)
    so_far = user.content.rpartition("Thought ")[0]
    return (system, Message(role="user", content=f"{so_far}{pack.ask.strip()}"))


def judge_prompt(pack: Pack, characters: int, attempt: Trajectory) -> tuple[Message, ...]:
    """The whole attempt, as a reflector sees it but for the verdict, and the question whether it solved the task."""
    steps = shorten(attempt.steps, max(0, characters - len(attempt.opening)))
    return (
        Message(role="system", content=pack.judge.strip()),
        Message(role="user", content=f"{attempt.opening.strip()}\n{_react_steps(steps)}\nSolved, yes or no?"),
    )


def compact_reflection_prompt(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """An ALFWorld attempt as what it showed: a quarter of the tokens, for small models on small machines."""
    known = digest(failure.task, failure.opening, failure.steps)
    advice = " ".join(" ".join(memory.reflections).split())
    tried = f"Advice: {advice}\n" if advice else ""
    return (
        Message(role="system", content="You advise a household robot."),
        Message(role="user", content=f"{known}{tried}Failed. Advice for the next attempt:"),
    )


def shorten(steps: tuple[Step, ...], characters: int) -> tuple[Step, ...]:
    """These steps with the longest observations cut, until they fit or nothing more may be cut.

    The last observation is kept whole: the end shows why the attempt failed.
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
    return tuple(step.model_copy(update={"observation": text}) for step, text in zip(steps, texts, strict=True))


def _react_steps(steps: tuple[Step, ...]) -> str:
    return "".join(
        (f"Thought {number}: {' '.join(step.thought.split())}\n" if step.thought else "")
        + f"Action {number}: {step.action}\nObservation {number}: {step.observation}\n"
        for number, step in enumerate(steps, start=1)
    )
