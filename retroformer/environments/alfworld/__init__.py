"""ALFWorld household games as text: the official release, or generated games of the same kind."""

import re
from collections.abc import Sequence

from retroformer.environments.alfworld import compact, scripted_play
from retroformer.environments.alfworld.actors import HouseholdActor, RuleActor, offered_actions
from retroformer.environments.alfworld.advice_writer import WORDINGS, lesson_reflector
from retroformer.environments.alfworld.arms import HistoryRuleArm, OracleArm, RuleArm, TableArm
from retroformer.environments.alfworld.attempt_reader import read_goal, read_steps, share_of_subgoals, view_of
from retroformer.environments.alfworld.compact import type_of
from retroformer.environments.alfworld.environment import Alfworld, AlfworldTaskset, check_grammar
from retroformer.environments.alfworld.generated_games import GeneratedGames
from retroformer.environments.alfworld.hindsight import PlaceHindsight
from retroformer.environments.alfworld.leak import PlaceLeak
from retroformer.environments.alfworld.released_games import ReleasedGames
from retroformer.environments.alfworld.report import AdviceChapter
from retroformer.environments.extras import ActorKind, ActorParts, Extras
from retroformer.errors import ConfigError
from retroformer.method.protocols import Actor
from retroformer.method.records import Lesson, Memory, Message, Task, Trajectory

__all__ = ["AlfworldTaskset", "Section", "extras", "taskset"]

Section = Alfworld


def taskset(section: Alfworld, seed: int = 0) -> AlfworldTaskset:
    """Return the games that a section describes; `seed` determines all generated worlds."""
    return GeneratedGames(section, seed) if section.source == "generated" else ReleasedGames(section)


def _household_actor(parts: ActorParts) -> Actor:
    settings = parts.settings
    if settings.choice == "admissible" and settings.endpoint.base_url is not None:
        raise ConfigError(
            f"actor.choice=admissible needs the experiment's own server, and {settings.endpoint.base_url} is another: "
            "leave actor.endpoint.base_url out, or set actor.choice=free."
        )
    return HouseholdActor(parts.model(), settings.temperature, parts.section.grammar, settings.choice)


def _cluster_of(task: Task) -> str:
    """Return the goal and the room of a released game, `GOAL-ROOM/trial_...`; a generated game has one of its own."""
    goal_and_room, _, trial = task.id.rpartition("/")
    return goal_and_room if trial.startswith("trial_") else task.id


def digest(attempt: Trajectory, earlier: Sequence[Lesson] = ()) -> str:
    """Return what the attempts have shown, for small models, which count badly.

        Task: put a clean mug in countertop
        Seen: mug 2 in countertop 1
        Searched: microwave 1, countertop 1, drawer 1
        Not searched: drawer 2-4, sinkbasin 1, cabinet 1-3

    Of the things that they showed, it names those that the task names, with the place where they lay at first. The
    lines `Searched` and `Not searched` are omitted where they name no place.
    """
    sentence, view = compact.read_opening(attempt.opening).task, view_of(attempt, earlier)
    names = set(re.findall(r"\w+", sentence.lower()))
    seen = [f"{thing} in {place}" for thing, place in view.room.first_seen.items() if type_of(thing) in names]
    lines = {
        "Task": sentence,
        "Seen": ", ".join(seen) or "none",
        "Searched": compact.listed(list(view.room.contents)),
        "Not searched": compact.listed(view.unsearched),
    }
    return "".join(f"{name}: {content}\n" for name, content in lines.items() if content)


def compact_reflection_prompt(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """Return ALFWorld attempts as one digest: a quarter of the tokens, for small models on small machines.

    If earlier attempts are known, each piece of advice is followed by the places that were searched with it.
    """
    if memory.earlier:
        advice = [" ".join(lesson.advice.split()) or "none" for lesson in memory.earlier]
        retries = (*(lesson.attempt for lesson in memory.earlier[1:]), failure)
        searched = [compact.listed(list(read_steps(retry.steps).contents)) for retry in retries]
        pairs = zip(advice, searched, strict=True)
        history = "".join(f"Advice: {text}\nSearched then: {places or 'nothing'}\n" for text, places in pairs)
    else:
        text = " ".join(" ".join(memory.reflections).split())
        history = f"Advice: {text}\n" if text else ""
    return (
        Message(role="system", content="You advise a household robot."),
        Message(role="user", content=f"{digest(failure, memory.earlier)}{history}Failed. Advice for the next attempt:"),
    )


extras = Extras(
    choices=lambda scene: scene.choices,
    actors={
        "rule": ActorKind(
            lambda parts: RuleActor(parts.section.grammar),
            asks_model=False,
            reading="It looks wherever a word of the advice points, so naming many places not yet searched pays. That "
            "is right for this actor; another may follow only the first place, or none.",
            reads_pack=False,
            reads_last_attempt=False,
        ),
        "household": ActorKind(
            _household_actor,
            reads_pack=False,
            reads_last_attempt=False,
            offers=lambda section, scene: offered_actions(scene, section.grammar),
        ),
    },
    arms=(RuleArm, HistoryRuleArm, TableArm, OracleArm),
    lessons={
        "mixed": lambda parts: lesson_reflector("mixed", parts.render, reads_history=parts.reads_history),
        "useful": lambda parts: lesson_reflector("useful", parts.render, reads_history=parts.reads_history),
    },
    views={"compact": compact_reflection_prompt},
    hindsight=PlaceHindsight,
    demonstrations=lambda section, count, actions, seed, wording: scripted_play.demonstrations(
        taskset(section, seed), count, actions, seed, WORDINGS[wording]
    ),
    check_examples=lambda section, seed, actions: check_grammar(taskset(section, seed), actions),
    chapters=AdviceChapter,
    leak_check=lambda section, seed: PlaceLeak(taskset(section, seed).walkthrough),
    returns={"shaped": lambda section, seed: share_of_subgoals},
    kind_of=lambda attempt: read_goal(compact.read_opening(attempt.opening).task).thing,
    cluster_of=_cluster_of,
    data_licence="ALFWorld and ALFRED, whose games were played: MIT.",
)
