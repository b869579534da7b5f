"""ALFWorld household games as text: the official release, or generated games of the same kind."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from retroformer.environments.alfworld.arms import HistoryRuleArm, OracleArm, RuleArm, TableArm
from retroformer.environments.alfworld.environment import Alfworld, AlfworldTaskset
from retroformer.environments.alfworld.released import ReleasedGames
from retroformer.environments.extras import (
    ActorKind,
    ActorParts,
    ChapterBuilder,
    Demonstration,
    Extras,
    LeakCheck,
    LessonParts,
    ReportedArm,
    Wording,
)
from retroformer.errors import ConfigError
from retroformer.hindsight import Hindsight
from retroformer.protocols import Actor, OfferedActions, Reflector, ReturnOf, Scene
from retroformer.records import Memory, Message, Task, Trajectory

__all__ = ["AlfworldTaskset", "Section", "extras", "taskset"]

Section = Alfworld
_RULE_READS = (
    "It looks wherever a word of the advice points, so naming many places not yet searched pays. That is right for "
    "this actor; another may follow only the first place, or none."
)


def _rule_actor(parts: ActorParts) -> Actor:
    from retroformer.environments.alfworld.actors import RuleActor

    return RuleActor(parts.section.grammar)


def _household_actor(parts: ActorParts) -> Actor:
    from retroformer.environments.alfworld.actors import HouseholdActor

    settings = parts.settings
    if settings.choice == "admissible" and settings.endpoint.base_url is not None:
        raise ConfigError(
            f"actor.choice=admissible needs the experiment's own server, and {settings.endpoint.base_url} is another: "
            "leave actor.endpoint.base_url out, or set actor.choice=free."
        )
    return HouseholdActor(parts.model(), settings.temperature, parts.section.grammar, settings.choice)


def _household_offers(section: Any, scene: Scene) -> OfferedActions:
    from retroformer.environments.alfworld.actors import offered_actions

    return offered_actions(scene, section.grammar)


def _mixed_lessons(parts: LessonParts) -> Reflector:
    from retroformer.environments.alfworld.reflectors import MixedReflector

    return MixedReflector(parts.render, reads_history=parts.reads_history)


def _useful_lessons(parts: LessonParts) -> Reflector:
    from retroformer.environments.alfworld.reflectors import UsefulReflector

    return UsefulReflector(parts.render, reads_history=parts.reads_history)


def _hindsight(attempts: Iterable[Trajectory]) -> Hindsight:
    from retroformer.environments.alfworld.hindsight import PlaceHindsight

    return PlaceHindsight(attempts)


def _compact_view(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    from retroformer.environments.alfworld.reading import compact_reflection_prompt

    return compact_reflection_prompt(failure, memory)


def _demonstrations(section: Any, count: int, actions: int, seed: int, wording: Wording) -> Iterator[Demonstration]:
    from retroformer.environments.alfworld.demonstrations import demonstrations
    from retroformer.environments.alfworld.wording import WORDINGS

    return demonstrations(taskset(section, seed), count, actions, seed, WORDINGS[wording])


def _check_examples(section: Any, seed: int, actions: Sequence[str]) -> None:
    from retroformer.environments.alfworld.engine import check_grammar

    check_grammar(taskset(section, seed), actions)


def _chapters(arms: Sequence[ReportedArm]) -> ChapterBuilder:
    from retroformer.environments.alfworld.report.chapter import AdviceChapter

    return AdviceChapter(arms)


def _leak_check(section: Any, seed: int) -> LeakCheck:
    from retroformer.environments.alfworld.report.leak import PlaceLeak

    return PlaceLeak(taskset(section, seed).walkthrough)


def _kind_of(attempt: Trajectory) -> str:
    from retroformer.environments.alfworld import compact
    from retroformer.environments.alfworld.reading import read_goal

    return read_goal(compact.read_opening(attempt.opening).task).thing


def _cluster_of(task: Task) -> str:
    """Return the goal and the room of a released game, `GOAL-ROOM/trial_...`; a generated game has one of its own."""
    goal_and_room, _, trial = task.id.rpartition("/")
    return goal_and_room if trial.startswith("trial_") else task.id


def _shaped(section: Any, seed: int) -> ReturnOf:
    from retroformer.environments.alfworld.reading import share_of_subgoals

    return share_of_subgoals


extras = Extras(
    choices=lambda scene: scene.choices,
    actors={
        "rule": ActorKind(
            _rule_actor, asks_model=False, reading=_RULE_READS, reads_pack=False, reads_last_attempt=False
        ),
        "household": ActorKind(_household_actor, reads_pack=False, reads_last_attempt=False, offers=_household_offers),
    },
    arms=(RuleArm, HistoryRuleArm, TableArm, OracleArm),
    lessons={"mixed": _mixed_lessons, "useful": _useful_lessons},
    views={"compact": _compact_view},
    hindsight=_hindsight,
    demonstrations=_demonstrations,
    check_examples=_check_examples,
    chapters=_chapters,
    leak_check=_leak_check,
    returns={"shaped": _shaped},
    kind_of=_kind_of,
    cluster_of=_cluster_of,
    data_licence="ALFWorld and ALFRED, whose games were played: MIT.",
)


def taskset(section: Alfworld, seed: int = 0) -> AlfworldTaskset:
    """Return the games that a section describes; `seed` determines all generated worlds."""
    if section.source == "generated":
        from retroformer.environments.alfworld.generated import GeneratedGames

        return GeneratedGames(section, seed)
    return ReleasedGames(section)
