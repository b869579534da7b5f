"""The household actor shows its model the compact text and says in the environment's grammar what the model wrote."""

import asyncio
from collections.abc import Sequence

import pytest

from retroformer.config.experiment import Experiment
from retroformer.config.parts import Connections, make_actor
from retroformer.config.sections.base import ActorSection, Endpoint
from retroformer.endpoint.model import Completion
from retroformer.environments.alfworld import extras
from retroformer.environments.alfworld.actors import HouseholdActor, household_prompt, offered
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.errors import ConfigError
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Step, Task, Usage

TASK = Task(id="pick-mug/1", environment="alfworld", split="train")
OPENING = (
    "You are in the middle of a room. Looking quickly around you, you see a desk 1, and a shelf 1.\n\n"
    "Your task is to: put some mug on desk."
)
STEPS = (
    Step(action="go to shelf 1", observation="You arrive at shelf 1. On the shelf 1, you see a mug 2."),
    Step(action="take mug 2 from shelf 1", observation="You pick up the mug 2 from the shelf 1."),
    Step(action="put mug 2 in/on shelf 1", observation="You put the mug 2 in/on the shelf 1."),
)


class ChainRecorder:
    """Writer that writes a given line and records its prompt."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.prompt = ""
        self.stop: tuple[str, ...] = ()
        self.choices: Sequence[str] | None = None
        self.sampled_with: list[tuple[float, int | None]] = []

    async def complete(
        self,
        prompt: str,
        *,
        temperature: float,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        seed: int | None = None,
        choices: Sequence[str] | None = None,
    ) -> Completion:
        self.prompt, self.stop, self.choices = prompt, tuple(stop), choices
        assert max_new_tokens == 20
        self.sampled_with.append((temperature, seed))
        return Completion(text=self.line, usage=Usage(calls=1, prompt_tokens=90, completion_tokens=7))


def scene(**changes: object) -> Scene:
    base = Scene(task=TASK, opening=OPENING, steps=STEPS, memory=Memory())
    return base.model_copy(update=changes)


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, None), (0.7, 71)])
def test_a_sampled_action_is_drawn_with_its_seed_and_a_greedy_one_needs_none(
    temperature: float, seed: int | None
) -> None:
    scribe = ChainRecorder(" go to desk 1")
    asyncio.run(HouseholdActor(scribe, temperature).act(scene(seed=71)))
    assert scribe.sampled_with == [(temperature, seed)]


def test_the_prompt_equals_the_training_text() -> None:
    memory = Memory(reflections=("Look in\nshelf 1.", "Put it in desk 1."))
    room = household_prompt(scene(steps=())).split("\n")[1]
    assert room in ("Room: desk 1, shelf 1", "Room: shelf 1, desk 1")
    assert household_prompt(scene(memory=memory)) == (
        "Task: put some mug on desk\n"
        f"{room}\n"
        "Advice: Look in shelf 1.\n"
        "Advice: Put it in desk 1.\n"
        "> go to shelf 1\n"
        "mug 2\n"
        "> take mug 2 from shelf 1\n"
        "You pick up the mug 2.\n"
        "> move mug 2 to shelf 1\n"
        "You move the mug 2.\n"
        ">"
    )


@pytest.mark.parametrize(
    ("line", "action"),
    [
        (" go to desk 1", "go to desk 1"),
        ("> go to desk 1\nclosed\n>", "go to desk 1"),
        ("\n", "look"),
        ("", "look"),
        (" take mug two from the shelf", "take mug two from the shelf"),
    ],
)
def test_one_line_becomes_one_action(line: str, action: str) -> None:
    scribe = ChainRecorder(line)
    move = asyncio.run(HouseholdActor(scribe).act(scene()))
    assert move.action == action
    assert move.usage == Usage(calls=1, prompt_tokens=90, completion_tokens=7)
    assert scribe.prompt == household_prompt(scene())
    assert scribe.stop == ("\n",)
    assert scribe.choices is None


def test_the_action_is_in_the_grammar_of_the_environment() -> None:
    line = " move mug 2 to desk 1"
    assert (
        asyncio.run(HouseholdActor(ChainRecorder(line), grammar="put").act(scene())).action == "put mug 2 in/on desk 1"
    )
    assert asyncio.run(HouseholdActor(ChainRecorder(line)).act(scene())).action == "move mug 2 to desk 1"


POSSIBLE = (
    "close drawer 1",
    "examine mug 2",
    "examine shelf 1",
    "go to desk 1",
    "help",
    "inventory",
    "look",
    "put mug 2 in/on shelf 1",
    "slice apple 1 with knife 1",
    "use desklamp 1",
)


def test_an_admissible_actor_is_offered_useful_actions_and_every_place_in_the_compact_text() -> None:
    assert offered(scene(choices=POSSIBLE)) == (
        "examine shelf 1",
        "go to desk 1",
        "go to shelf 1",
        "move mug 2 to shelf 1",
        "use desklamp 1",
    )


def test_an_admissible_actor_asks_for_one_whole_line_among_its_choices() -> None:
    scribe = ChainRecorder(" move mug 2 to shelf 1")
    move = asyncio.run(HouseholdActor(scribe, grammar="put", choice="admissible").act(scene(choices=POSSIBLE)))
    assert scribe.choices == [
        " examine shelf 1\n",
        " go to desk 1\n",
        " go to shelf 1\n",
        " move mug 2 to shelf 1\n",
        " use desklamp 1\n",
    ]
    assert move.action == "put mug 2 in/on shelf 1"


def test_the_actions_offered_for_training_are_those_that_the_served_actor_chooses_among() -> None:
    here, scribe = scene(choices=POSSIBLE), ChainRecorder("")
    offers = extras.actors["household"].offers
    assert offers is not None
    texts = offers(Alfworld(name="alfworld", grammar="put"), here)
    asyncio.run(HouseholdActor(scribe, choice="admissible").act(here))
    assert texts.prompt == scribe.prompt
    assert list(texts.continuations) == scribe.choices
    assert texts.actions[3] == "put mug 2 in/on shelf 1"
    assert len(texts.actions) == len(texts.continuations) == 5


def admissible(base_url: str | None) -> Experiment:
    endpoint = Endpoint(base_url=base_url, model="actor", api="completions")
    actor = ActorSection(kind="household", endpoint=endpoint, choice="admissible")
    return Experiment(run="try", environment=Alfworld(name="alfworld"), actor=actor)


def test_the_config_makes_an_actor_admissible_on_the_experiments_own_server() -> None:
    actor = make_actor(admissible(None), Connections("http://127.0.0.1:1/v1", frozenset({"actor"})))
    assert isinstance(actor, HouseholdActor)
    assert actor.choice == "admissible"


def test_an_admissible_actor_at_another_server_is_refused_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        make_actor(admissible("http://elsewhere/v1"), Connections(None))
    assert str(refused.value) == (
        "actor.choice=admissible needs the experiment's own server, and http://elsewhere/v1 is another: leave "
        "actor.endpoint.base_url out, or set actor.choice=free."
    )
