"""Optional parts of an environment: actors, written advice, prompt views, checks and a report chapter.

An environment is a module with a config section, `Section`, and a function `taskset(section, seed)`. If the module also
has `extras`, an `Extras`, those parts become available; nothing outside the module needs its name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from retroformer.agents.arms.arm import Arm
from retroformer.config.sections.base import ActorSection
from retroformer.endpoint.model import LanguageModel
from retroformer.environments.section import Wording
from retroformer.files.document import Chapter, Words
from retroformer.method.prompts import PromptPack, Render
from retroformer.method.protocols import Actor, BuildHindsight, Evaluator, OfferedActions, Reflector, ReturnOf, Scene
from retroformer.method.records import Reflection, Task, Tool, Trajectory


class ActorParts(NamedTuple):
    """Inputs for building an actor."""

    settings: ActorSection
    section: Any
    """Config section of the environment."""
    model: Callable[[], LanguageModel]
    pack: Callable[[], PromptPack]
    """Function that reads the prompt pack of the settings. Raises MissingInput, ConfigError."""


@dataclass(frozen=True)
class ActorKind:
    """Value of `actor.kind`."""

    build: Callable[[ActorParts], Actor]
    """Builder. Raises ConfigError if the settings do not fit."""
    asks_model: bool = True
    """False for an actor that is a program."""
    reading: str = ""
    """Sentence for the report: how an actor that is a program reads advice."""
    plays_whole_attempts: bool = False
    """True for an agent of the user's own, whose one action is an attempt."""
    reads_pack: bool = True
    """True if its prompts come from the prompt pack."""
    reads_last_attempt: bool = True
    """True if it can carry its last attempt (`loop.last_attempt`), not only advice."""
    offers: Callable[[Any, Scene], OfferedActions] | None = None
    """Function that lists the possible actions of a scene as texts of the actor's model, given the config section, so
    that `train sac` can train this actor; None: it cannot."""


class LessonParts(NamedTuple):
    """Inputs for building a writer of the warm start's advice."""

    section: Any
    render: Render
    reads_history: bool
    """True if the prompt shows all attempts so far (`reflector.history`), so that a lesson may draw on them."""


class Demonstration(NamedTuple):
    """Scripted attempt as text, which an actor learns to imitate."""

    task_id: str
    kind: str
    """Kind of the advice in it, such as `none`."""
    solved: bool
    pieces: tuple[tuple[str, bool], ...]
    """Pieces of the text; True marks what the actor writes and learns."""

    @property
    def text(self) -> str:
        return "".join(piece for piece, _ in self.pieces)


class SeedFacts(NamedTuple):
    """Results of one training seed of an arm at one task.

    Attempts are by trial, with the shared trial 0; reflections are by the trial that read them.
    """

    attempts: dict[int, Trajectory]
    reflections: dict[int, Reflection]


class TaskFacts(NamedTuple):
    """Results of all arms at one task."""

    task_id: str
    first: Trajectory | None
    """Shared trial 0; None if it was not played."""
    seeds: dict[str, SeedFacts]
    """Results by the seed's name in the store."""


@runtime_checkable
class ChapterBuilder(Protocol):
    """Builder of chapters of the report from the results of all tasks."""

    def add(self, facts: TaskFacts) -> None:
        """Count the results of one task; tasks arrive one at a time, because not all fit into memory."""
        ...

    def chapters(self) -> Iterable[Chapter]:
        """Return the chapters; none if there is nothing to say."""
        ...


class ReportedArm(Protocol):
    """Arm of the report: its name, and the names of its training seeds in the store."""

    @property
    def name(self) -> str: ...

    @property
    def stored_names(self) -> Sequence[str]: ...


class LeakCheck(Protocol):
    """Check whether advice gives away a part of the solution that the agent could not know."""

    @property
    def rule(self) -> Words:
        """Sentences for the report that say which advice counts."""
        ...

    def given_away(self, advice: str, attempts: Sequence[Trajectory]) -> str:
        """Return what advice holds of the solution that its task and these attempts do not show; empty if nothing.

        The last attempt is the failure that it is about. Raises UnknownTask, MissingInput, EnvironmentFailure.
        """
        ...


@dataclass(frozen=True)
class Extras:
    """Optional parts of an environment. Names are those used in a config."""

    actors: Mapping[str, ActorKind] = field(default_factory=dict)
    plays_text: bool = True
    """True if the ReAct actor can play it."""
    tools: Callable[[Any], tuple[Tool, ...]] | None = None
    """Function from the config section to the tools for `actor.kind: tools`; transitions may list others. None: an
    environment that plays text has the one tool `act`."""
    choices: Callable[[Scene], Sequence[str]] | None = None
    """Function that lists the possible actions of a scene for `actor.kind: chooser`, which SAC can train. None: actions
    are open texts, and there is no such actor."""
    arms: Sequence[type[Arm]] = ()
    """Kinds of arms whose advice is written by rule."""
    lessons: Mapping[str, Callable[[LessonParts], Reflector]] = field(default_factory=dict)
    """Values of `collect.lesson`: writers of the warm-start advice."""
    views: Mapping[str, Render] = field(default_factory=dict)
    """Values of `reflector.view`: how the reflector sees a failure."""
    hindsight: Callable[[Any], BuildHindsight] | None = None
    """Builder, from the config section, of the writer of advice that attempts have proved right, for
    `train.sft.texts: hindsight`; None: the best rated advice on a failure is taken."""
    evaluators: Mapping[str, Callable[[], Evaluator]] = field(default_factory=dict)
    """Values of `evaluator.kind`."""
    demonstrations: Callable[[Any, int, int, int, Wording], Iterator[Demonstration]] | None = None
    """Scripted play for `train actor`: (section, number of attempts, maximum actions per attempt, seed, wording of the
    advice that is obeyed)."""
    check_examples: Callable[[Any, int, Sequence[str]], None] | None = None
    """Check of the prompt pack's example actions: (section, seed, actions). Raises ConfigError if one is invalid."""
    chapters: Callable[[Sequence[ReportedArm]], ChapterBuilder] | None = None
    """Builder of the environment's own chapters of the report about these arms."""
    leak_check: Callable[[Any, int], LeakCheck] | None = None
    """Check for advice that gives the solution away: (section, seed)."""
    returns: Mapping[str, Callable[[Any, int], ReturnOf]] = field(default_factory=dict)
    """Values of `train.rated_by`: other returns of stored attempts, each from (section, seed). `shaped` is graded
    progress, 1 for a solved task. Building one raises ConfigError if attempts under this section leave no trace of
    it."""
    kind_of: Callable[[Trajectory], str] | None = None
    """Kind of thing that an attempt's task is about, such as `mug`; None: tasks have no kinds."""
    cluster_of: Callable[[Task], str] | None = None
    """Cluster of a task, such as its goal and room, if tasks of a cluster have similar results; None: all tasks are
    independent."""
    require_machine: Callable[[Any], None] = lambda section: None
    """Check of the machine. Raises ServiceError if it cannot play these tasks."""
    refuse_training: Callable[[Any], None] = lambda section: None
    """Check of the licence. Raises ConfigError if it forbids training on these tasks."""
    tool_versions: Callable[[Any], Mapping[str, str]] = lambda section: {}
    """Versions of programs, other than Python packages, that affect how the environment answers."""
    data_licence: str = ""
    """Licence sentence for model cards."""
