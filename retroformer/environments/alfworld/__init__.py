"""ALFWorld household games as text: the official release, or generated games of the same kind."""

from functools import partial

from retroformer.environments.alfworld import scripted_play
from retroformer.environments.alfworld.actors import HouseholdActor, RuleActor, offered_actions
from retroformer.environments.alfworld.advice_writer import lesson_reflector
from retroformer.environments.alfworld.arms import HistoryRuleArm, OracleArm, RuleArm, TableArm
from retroformer.environments.alfworld.attempt_reader import read_goal, share_of_subgoals
from retroformer.environments.alfworld.compact import read_opening
from retroformer.environments.alfworld.environment import Alfworld, AlfworldTaskset, check_grammar
from retroformer.environments.alfworld.generated_games import GeneratedGames
from retroformer.environments.alfworld.hindsight import PlaceHindsight
from retroformer.environments.alfworld.leak import PlaceLeak
from retroformer.environments.alfworld.reflection_prompt import compact_reflection_prompt
from retroformer.environments.alfworld.released_games import ReleasedGames
from retroformer.environments.alfworld.report import AdviceChapter
from retroformer.environments.extras import ActorKind, ActorParts, Extras
from retroformer.errors import ConfigError
from retroformer.method.protocols import Actor
from retroformer.method.records import Task

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
    lessons={"mixed": partial(lesson_reflector, "mixed"), "useful": partial(lesson_reflector, "useful")},
    views={"compact": compact_reflection_prompt},
    hindsight=lambda section: partial(PlaceHindsight, wording=section.wording),
    demonstrations=lambda section, count, actions, seed, obeyed: scripted_play.demonstrations(
        taskset(section, seed), count, actions, seed, section.wording, obeyed
    ),
    check_examples=lambda section, seed, actions: check_grammar(taskset(section, seed), actions),
    chapters=AdviceChapter,
    leak_check=lambda section, seed: PlaceLeak(taskset(section, seed).walkthrough),
    returns={"shaped": lambda section, seed: share_of_subgoals},
    kind_of=lambda attempt: read_goal(read_opening(attempt.opening).task).thing,
    cluster_of=_cluster_of,
    data_licence="ALFWorld and ALFRED, whose games were played: MIT.",
)
