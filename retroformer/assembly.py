"""Builds the parts that an experiment page names: tasks, actor, models, and the server where one is needed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retroformer.best_of import best_of
from retroformer.config import Endpoint, Experiment
from retroformer.config_file import load
from retroformer.environments import taskset
from retroformer.environments.pool import EnvironmentPool
from retroformer.environments.sections import Alfworld, Programming
from retroformer.errors import ConfigError, MissingInput
from retroformer.llm import LanguageModel
from retroformer.prompts import load_pack, reflection_renderer
from retroformer.protocols import Actor, Agent, Evaluator, Reflector
from retroformer.provenance import Provenance
from retroformer.records import Task
from retroformer.reflectors.model import ModelReflector


@dataclass(frozen=True)
class Page:
    """An experiment, and the words on the command line that made it (a server for it is started with the same)."""

    path: Path
    overrides: tuple[str, ...]
    experiment: Experiment


def read_page(arguments: Sequence[str], usage: str) -> Page:
    """The page that `EXPERIMENT.yaml [key=value ...]` names. Raises ConfigError, MissingInput."""
    if not arguments or "=" in arguments[0] or arguments[0].startswith("-"):
        raise ConfigError(f"Name an experiment page. Usage: {usage}")
    path, overrides = Path(arguments[0]), tuple(arguments[1:])
    return Page(path, overrides, load(path, overrides))


@dataclass(frozen=True)
class Connections:
    """Language models at their endpoints; the connections are given back together."""

    base_url: str | None
    """The experiment's own server, for the endpoints of a page that name no address."""
    served: frozenset[str] = frozenset()
    """What that server serves."""
    opened: list[LanguageModel] = field(default_factory=list)

    def model(self, endpoint: Endpoint, name: str | None = None) -> LanguageModel:
        """The model that `endpoint` describes, or the one called `name` at the same address.

        Raises:
            MissingInput: the experiment's own server has no such adapter, because it has not been trained.
        """
        wanted = name or endpoint.model
        if endpoint.base_url is None and wanted not in self.served:
            chosen = best_of(wanted)
            stages = [wanted.partition("@")[0]] if chosen is None else [chosen.model, "reward"]
            commands = " and ".join(f"`python -m train {stage} EXPERIMENT.yaml`" for stage in stages)
            raise MissingInput(
                f"No adapter {wanted!r} is served, only {', '.join(sorted(self.served))}: "
                f"run {commands} first, or name another model."
            )
        address = endpoint.base_url or self.base_url
        assert address is not None, "a server is started whenever an endpoint has no address"
        self.opened.append(LanguageModel(endpoint, address, name))
        return self.opened[-1]

    async def close(self) -> None:
        for model in self.opened:
            await model.close()


@dataclass(frozen=True)
class Parts:
    """What a stage that plays tasks works with."""

    pool: EnvironmentPool
    actor: Actor
    evaluator: Evaluator | None
    connections: Connections
    adapter_sha256: dict[str, str | None]
    """By model name, as the own server proves it, and of a best-of-n with its reward model's; empty without one."""
    experiment: Experiment
    provenance: Provenance | None = None
    """What the own server says that it serves, where one runs."""

    @property
    def actor_sha256(self) -> str | None:
        """Of the adapter that acts, where the own server serves one."""
        page = self.experiment.actor
        own = page.kind != "rule" and page.endpoint.base_url is None
        return self.adapter_sha256.get(page.endpoint.model) if own else None

    def agent(self, reflector: Reflector, actor: Actor | None = None) -> Agent:
        """The page's actor, or another, with this reflector."""
        return Agent(actor or self.actor, reflector, self.evaluator)

    def reflector(self, model: str, temperature: float) -> ModelReflector:
        """The reflector of this name at the experiment's endpoint."""
        page = self.experiment.reflector
        return ModelReflector(
            self.connections.model(page.endpoint, model),
            reflection_renderer(self.experiment),
            temperature,
            page.max_new_tokens,
            page.stop,
            self.adapter_sha256.get(model),
        )


@asynccontextmanager
async def parts(page: Page, *, asks_reflector: bool) -> AsyncIterator[Parts]:
    """Start what the experiment needs, and stop it at the end.

    Raises:
        ServiceError: the experiment's own server cannot be started, or this machine cannot play these tasks.
    """
    experiment = page.experiment
    experiment.environment.require_machine()
    loop = experiment.loop
    endpoints = [experiment.reflector.endpoint] if asks_reflector else []
    if experiment.actor.kind != "rule":
        endpoints.append(experiment.actor.endpoint)
    if experiment.evaluator.kind == "model":
        endpoints.append(experiment.evaluator.endpoint)
    async with AsyncExitStack() as stack:
        base_url, hashes, proven = None, dict[str, str | None](), None
        if any(endpoint.base_url is None for endpoint in endpoints):
            from retroformer.served import provenance, served

            base_url = await stack.enter_async_context(served(page.path, page.overrides, experiment))
            proven = await provenance(base_url)
            hashes = {name: model.trained_sha256 for name, model in proven.models.items()}
        pool = EnvironmentPool(
            experiment.environment, experiment.seed, loop.environment_processes, loop.step_timeout_seconds
        )
        await stack.enter_async_context(pool)
        connections = Connections(base_url, frozenset(hashes))
        stack.push_async_callback(connections.close)
        actor, evaluator = make_actor(experiment, connections), make_evaluator(experiment, connections)
        yield Parts(pool, actor, evaluator, connections, hashes, experiment, proven)


def make_actor(experiment: Experiment, connections: Connections) -> Actor:
    """The frozen actor of this page.

    Raises:
        ConfigError: this actor cannot play this environment, or its endpoint cannot hold it to admissible actions.
    """
    page, environment = experiment.actor, experiment.environment
    if experiment.loop.last_attempt and page.kind in ("rule", "household"):
        raise ConfigError(f"The {page.kind} actor reads advice alone: leave last_attempt out, or set actor.kind=react.")
    if (page.kind == "programmer") is not (environment.name == "programming"):
        raise ConfigError(f"The {page.kind} actor does not play {environment.name}: set actor.kind to another.")
    if isinstance(environment, Programming):
        from retroformer.actors.programmer import ProgrammingActor

        return ProgrammingActor(
            connections.model(page.endpoint),
            load_pack(page.prompts, environment.name),
            page.temperature,
            page.max_new_tokens,
            writes_tests=environment.own_tests > 0,
        )
    if page.kind == "react":
        from retroformer.actors.react import ReactActor

        pack = load_pack(page.prompts, environment.name)
        return ReactActor(connections.model(page.endpoint), pack, page.temperature, page.max_new_tokens)
    if not isinstance(environment, Alfworld):
        raise ConfigError(f"The {page.kind} actor plays ALFWorld only: set actor.kind=react for {environment.name}.")
    if page.kind == "household":
        from retroformer.actors.household import HouseholdActor

        if page.choice == "admissible" and page.endpoint.base_url is not None:
            raise ConfigError(
                f"actor.choice=admissible needs the experiment's own server, and {page.endpoint.base_url} is another: "
                "leave actor.endpoint.base_url out, or set actor.choice=free."
            )
        model = connections.model(page.endpoint)
        return HouseholdActor(model, page.temperature, environment.grammar, page.choice)
    from retroformer.actors.rule import RuleActor

    return RuleActor(grammar=environment.grammar)


def make_evaluator(experiment: Experiment, connections: Connections) -> Evaluator | None:
    """Who judges the attempts of this page; nobody where the true outcome is told.

    Raises:
        ConfigError: there are no tests in this environment.
    """
    from retroformer import evaluators

    match experiment.evaluator.kind:
        case "oracle":
            return None
        case "heuristic":
            return evaluators.HeuristicEvaluator()
        case "tests":
            if experiment.environment.name != "programming":
                raise ConfigError(
                    f"evaluator.kind=tests is for programs, and {experiment.environment.name} has none: "
                    "take oracle, heuristic or model."
                )
            return evaluators.TestsEvaluator()
        case "model":
            pack = load_pack(experiment.actor.prompts, experiment.environment.name)
            model = connections.model(experiment.evaluator.endpoint)
            return evaluators.ModelEvaluator(model, pack, experiment.reflector.prompt_characters)


def chosen_tasks(experiment: Experiment, count: int | None, splits: Sequence[str] = ()) -> tuple[Task, ...]:
    """The first `count` tasks of these splits, one split after the other, each in its official order.

    Without `splits` those of the page's split.

    Raises:
        MissingInput: there is none, or the data are not there.
        ConfigError: a task is in two of the splits, so its attempts could not be told apart.
    """
    tasks = list[Task]()
    for split in splits or (experiment.environment.split,):
        section = experiment.environment.model_copy(update={"split": split})
        found = taskset(section, experiment.seed).tasks()
        if not found:
            raise MissingInput(f"Split {split!r} has no tasks: name another one with environment.split or eval.split.")
        if twice := {task.id for task in tasks} & {task.id for task in found}:
            raise ConfigError(
                f"{len(twice)} tasks of split {split!r} are in another of the splits {', '.join(splits)}, too, such as "
                f"{min(twice)!r}: name splits that share none."
            )
        tasks += found
    return tuple(tasks[:count])


def check_prompts(experiment: Experiment) -> None:
    """Refuse a run whose prompts and environment speak different grammars: replay an expert before the first rollout.

    Raises:
        ConfigError: the examples of the prompt pack would be answered `Nothing happens.`
    """
    if not isinstance(experiment.environment, Alfworld):
        return
    from retroformer.environments import alfworld

    examples: tuple[str, ...] = ()
    if experiment.actor.kind == "react":
        examples = load_pack(experiment.actor.prompts, "alfworld").actions
    games = alfworld.taskset(experiment.environment, experiment.seed)
    alfworld.check_grammar(games, examples)


async def gather_all(work: Sequence["asyncio.Task[None]"]) -> None:
    """Wait for all, then raise the first error: units in flight are finished and stored before a stage stops."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
