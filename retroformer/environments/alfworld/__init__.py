"""ALFWorld household games as text: the official release, or generated games of the same kind."""

from collections.abc import Iterator, Sequence
from typing import Any

from retroformer.environments.alfworld import compact, scripted_play
from retroformer.environments.alfworld.actors import HouseholdActor, RuleActor, offered_actions
from retroformer.environments.alfworld.arms import HistoryRuleArm, OracleArm, RuleArm, TableArm
from retroformer.environments.alfworld.environment import Alfworld, AlfworldTaskset, check_grammar
from retroformer.environments.alfworld.generated import GeneratedGames
from retroformer.environments.alfworld.hindsight import PlaceHindsight
from retroformer.environments.alfworld.reading import compact_reflection_prompt, read_goal, share_of_subgoals
from retroformer.environments.alfworld.reflectors import mixed_reflector, useful_reflector
from retroformer.environments.alfworld.released import ReleasedGames
from retroformer.environments.alfworld.report import AdviceChapter, PlaceLeak
from retroformer.environments.alfworld.wording import WORDINGS
from retroformer.environments.extras import ActorKind, ActorParts, Demonstration, Extras, Wording
from retroformer.errors import ConfigError
from retroformer.method.protocols import Actor
from retroformer.method.records import Task, Trajectory

__all__ = ["AlfworldTaskset", "Section", "extras", "taskset"]

Section = Alfworld
_RULE_READS = (
    "It looks wherever a word of the advice points, so naming many places not yet searched pays. That is right for "
    "this actor; another may follow only the first place, or none."
)


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


def _demonstrations(section: Any, count: int, actions: int, seed: int, wording: Wording) -> Iterator[Demonstration]:
    return scripted_play.demonstrations(taskset(section, seed), count, actions, seed, WORDINGS[wording])


def _check_examples(section: Any, seed: int, actions: Sequence[str]) -> None:
    check_grammar(taskset(section, seed), actions)


def _kind_of(attempt: Trajectory) -> str:
    return read_goal(compact.read_opening(attempt.opening).task).thing


def _cluster_of(task: Task) -> str:
    """Return the goal and the room of a released game, `GOAL-ROOM/trial_...`; a generated game has one of its own."""
    goal_and_room, _, trial = task.id.rpartition("/")
    return goal_and_room if trial.startswith("trial_") else task.id


extras = Extras(
    choices=lambda scene: scene.choices,
    actors={
        "rule": ActorKind(
            lambda parts: RuleActor(parts.section.grammar),
            asks_model=False,
            reading=_RULE_READS,
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
        "mixed": lambda parts: mixed_reflector(parts.render, reads_history=parts.reads_history),
        "useful": lambda parts: useful_reflector(parts.render, reads_history=parts.reads_history),
    },
    views={"compact": compact_reflection_prompt},
    hindsight=PlaceHindsight,
    demonstrations=_demonstrations,
    check_examples=_check_examples,
    chapters=AdviceChapter,
    leak_check=lambda section, seed: PlaceLeak(taskset(section, seed).walkthrough),
    returns={"shaped": lambda section, seed: share_of_subgoals},
    kind_of=_kind_of,
    cluster_of=_cluster_of,
    data_licence="ALFWorld and ALFRED, whose games were played: MIT.",
)
