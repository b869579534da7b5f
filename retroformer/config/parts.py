"""Builds the parts that an experiment config names: tasks, actor, models, and a server if one is needed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from retroformer.agents.actors import actor_kind
from retroformer.agents.reflector import ModelReflector
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.sections.base import CHAIN, Endpoint, RetryPlan, adapter_name, best_of
from retroformer.endpoint.model import LanguageModel
from retroformer.endpoint.retries import Pace
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.environments.extras import ActorParts
from retroformer.environments.pool import EnvironmentPool
from retroformer.environments.registry import extras, taskset
from retroformer.errors import ConfigError, EndpointFailure, MissingInput, ProvenanceError
from retroformer.method.prompts import Render, adaptation_prompt, load_pack, reflection_prompt
from retroformer.method.protocols import Actor, Agent, Evaluator, Reflector
from retroformer.method.records import LONGEST_NAME, Task
from retroformer.run.adapter_names import FOLDER_NAME, REFLECTOR, REWARD, training_command
from retroformer.run.attempts import Budget, Experience
from retroformer.run.ledger import Ledger
from retroformer.run.provenance import Proven, Provenance

_PROOF_SECONDS = 10.0
"""Time in which a server elsewhere must say what it serves."""


@dataclass(frozen=True)
class Connections:
    """Language models at their endpoints; all connections are closed together."""

    base_url: str | None
    """Address of the experiment's own server, for endpoints without `base_url` in the config."""
    served: frozenset[str] = frozenset()
    """Names of the models that this server serves."""
    opened: list[LanguageModel] = field(default_factory=list)
    paces: dict[str, Pace] = field(default_factory=dict)
    """Pace of each address, which all models there share."""

    def model(self, endpoint: Endpoint) -> LanguageModel:
        """Return the model that `endpoint` describes. Raises MissingInput."""
        if endpoint.base_url is None:
            self.require_served(endpoint.model)
        address = endpoint.base_url or self.base_url
        assert address is not None, "a server is started whenever an endpoint has no address"
        self.opened.append(LanguageModel(endpoint, address, self.paces))
        return self.opened[-1]

    def require_served(self, model: str) -> None:
        """Raise MissingInput if the experiment's own server has no such adapter, because it has not been trained."""
        if model in self.served:
            return
        needed = [adapter_name(model), *([REWARD] if best_of(model) else [])]
        untrained = [name for name in needed if name != "base"]
        trainable = all(name == REFLECTOR or FOLDER_NAME.fullmatch(name) for name in untrained)
        commands = " and ".join(map(training_command, untrained))
        advice = f"run {commands} first, or name another model" if trainable else "name one of these"
        raise MissingInput(f"No adapter {model!r} is served, only {', '.join(sorted(self.served))}: {advice}.")

    async def close(self) -> None:
        for model in self.opened:
            await model.close()


@dataclass(frozen=True)
class Parts:
    """The objects that a stage needs to play tasks."""

    pool: EnvironmentPool
    actor: Actor
    evaluator: Evaluator | None
    connections: Connections
    experiment: Experiment
    proven: Proven
    """What the servers report that can say what they serve."""

    @property
    def adapter_sha256(self) -> dict[str, str | None]:
        """Adapter hashes by model name as reported by the experiment's own server; empty without such a server.

        The hash of a best-of-n name covers its reward model, too.
        """
        own = self.proven.get(None)
        return {name: model.trained_sha256 for name, model in own.models.items()} if own else {}

    @property
    def actor_sha256(self) -> str | None:
        """Hash of the actor's adapter; None unless the experiment's own server serves one."""
        endpoint = self.experiment.actor.endpoint
        own = actor_kind(self.experiment).asks_model and endpoint.base_url is None
        return self._sha256_of(endpoint) if own else None

    def _sha256_of(self, endpoint: Endpoint) -> str | None:
        server = self.proven.get(endpoint.base_url)
        model = server.models.get(endpoint.model) if server else None
        return model.trained_sha256 if model else None

    def agent(self, reflector: Reflector, actor: Actor | None = None) -> Agent:
        """Return an agent with this reflector and `actor`, by default the config's actor."""
        return Agent(actor or self.actor, reflector, self.evaluator)

    def experience(
        self,
        ledger: Ledger,
        arm: str,
        reflector: Reflector,
        plan: RetryPlan = CHAIN,
        on_event: Callable[[str], None] = lambda outcome: None,
    ) -> Experience:
        """Return the experience of an arm within the budget of `collect`."""
        return Experience(
            ledger,
            arm,
            self.pool,
            self.agent(reflector),
            self.experiment.loop,
            self.experiment.seed,
            Budget(self.experiment.collect, lambda: ledger.store.usage(arm)),
            slots=asyncio.Semaphore(self.experiment.loop.concurrency),
            plan=plan,
            on_event=on_event,
        )

    def reflector(self, writer: Endpoint, temperature: float, *, tokens: bool = False) -> ModelReflector:
        """Return the reflector whose advice the model of this endpoint writes; with `tokens`, it keeps them."""
        settings = self.experiment.reflector
        return ModelReflector(
            self.connections.model(writer),
            reflection_renderer(self.experiment),
            temperature,
            settings.max_new_tokens,
            settings.stop,
            self._sha256_of(writer),
            tokens=tokens,
        )


@asynccontextmanager
async def parts(
    config: Config, *, asks_reflector: bool, environment_processes: int | None = None
) -> AsyncIterator[Parts]:
    """Start what the experiment needs, and stop it at the end.

    `environment_processes` is the number of processes that play; None: as many as the machine has room for. Raises
    ServiceError if the experiment's own server cannot be started, or this machine cannot play these tasks.
    """
    experiment = config.experiment
    extras(experiment.environment).require_machine(experiment.environment)
    loop = experiment.loop
    endpoints = _endpoints(experiment, asks_reflector=asks_reflector)
    async with AsyncExitStack() as stack:
        base_url, proven = None, await _proven_elsewhere(endpoints)
        if any(endpoint.base_url is None for endpoint in endpoints):
            from retroformer.endpoint.own_server import provenance, run_own_server

            base_url = await stack.enter_async_context(run_own_server(config.path, config.overrides, experiment))
            proven[None] = await provenance(base_url)
        shared = environment_processes or loop.environment_processes
        processes = loop.concurrency if experiment.environment.plays_alone else shared
        pool = EnvironmentPool(experiment.environment, experiment.seed, processes)
        await stack.enter_async_context(pool)
        connections = Connections(base_url, frozenset(proven[None].models if base_url else ()))
        stack.push_async_callback(connections.close)
        actor, evaluator = make_actor(experiment, connections), make_evaluator(experiment, connections)
        yield Parts(pool, actor, evaluator, connections, experiment, proven)


async def _proven_elsewhere(endpoints: Sequence[Endpoint]) -> dict[SecretUrl | None, Provenance]:
    """Return what servers elsewhere report that can say what they serve; other providers' cannot."""
    from retroformer.endpoint.own_server import provenance

    proven = dict[SecretUrl | None, Provenance]()
    for endpoint in endpoints:
        if endpoint.base_url is not None and endpoint.base_url not in proven:
            with suppress(ProvenanceError, EndpointFailure):
                address, key = endpoint.base_url.secret_url(), endpoint.api_key_env
                proven[endpoint.base_url] = await provenance(address, key, _PROOF_SECONDS)
    return proven


def _endpoints(experiment: Experiment, *, asks_reflector: bool) -> list[Endpoint]:
    """Return the endpoints that the experiment calls."""
    endpoints = [experiment.reflector.endpoint] if asks_reflector else []
    if actor_kind(experiment).asks_model or experiment.evaluator.kind == "model":
        endpoints.append(experiment.actor.endpoint)
    return endpoints


def require_addresses(experiment: Experiment, *, asks_reflector: bool) -> None:
    """Refuse endpoints without an address, which no worker of `loop.backend` reaches. Raises ConfigError."""
    if any(endpoint.base_url is None for endpoint in _endpoints(experiment, asks_reflector=asks_reflector)):
        raise ConfigError(
            f"With loop.backend={experiment.loop.backend} every model needs an address that all workers reach: start "
            "`retroformer serve` or another server, and set base_url of actor.endpoint and reflector.endpoint."
        )


def make_actor(experiment: Experiment, connections: Connections) -> Actor:
    """Build the frozen actor of this config. Raises ConfigError if it cannot play this environment."""
    settings, environment = experiment.actor, experiment.environment
    kind = actor_kind(experiment)
    if experiment.loop.last_attempt and not kind.reads_last_attempt:
        raise ConfigError(
            f"The {settings.kind} actor reads advice alone: leave last_attempt out, or set actor.kind=react."
        )
    parts = ActorParts(
        settings,
        environment,
        model=lambda: connections.model(settings.endpoint),
        pack=lambda: load_pack(settings.prompts, environment.name),
    )
    return kind.build(parts)


def make_evaluator(experiment: Experiment, connections: Connections) -> Evaluator | None:
    """Build the evaluator of this config; None if the agent sees the true outcome. Raises ConfigError."""
    from retroformer.agents import evaluators

    match experiment.evaluator.kind:
        case "oracle":
            return None
        case "heuristic":
            return evaluators.HeuristicEvaluator()
        case "model":
            pack = load_pack(experiment.actor.prompts, experiment.environment.name)
            model = connections.model(experiment.actor.endpoint)
            return evaluators.ModelEvaluator(model, pack, experiment.reflector.prompt_characters)
        case kind:
            offered = extras(experiment.environment).evaluators
            if kind not in offered:
                raise ConfigError(
                    f"evaluator.kind={kind} is not for {experiment.environment.name}: "
                    f"set it to {' or '.join(('oracle', 'heuristic', 'model', *offered))}."
                )
            return offered[kind]()


def chosen_tasks(experiment: Experiment, count: int | None, splits: Sequence[str] = ()) -> tuple[Task, ...]:
    """Return the first `count` tasks of these splits (else of environment.split), in the official order.

    Raises MissingInput if a split has no tasks, and ConfigError if two share one, whose attempts would be mixed, or if
    an id is too long.
    """
    tasks = list[Task]()
    for split in splits or (experiment.environment.split,):
        section = experiment.environment.model_copy(update={"split": split})
        split_tasks = taskset(section, experiment.seed).tasks()
        if not split_tasks:
            raise MissingInput(f"Split {split!r} has no tasks: name another one with environment.split or eval.split.")
        if shared := {task.id for task in tasks} & {task.id for task in split_tasks}:
            raise ConfigError(
                f"{len(shared)} tasks of split {split!r} are in another of the splits {', '.join(splits)}, too, such "
                f"as {min(shared)!r}: name splits that share none."
            )
        if long := [task.id for task in split_tasks if len(task.id.encode()) > LONGEST_NAME]:
            raise ConfigError(f"The id of the task {long[0][:40]!r}... has more than {LONGEST_NAME} bytes: shorten it.")
        tasks += split_tasks
    return tuple(tasks[:count])


def held_out_tasks(experiment: Experiment) -> tuple[Task, ...]:
    """Return the tasks that `eval` plays and reports: the first `eval.tasks` of the held-out splits."""
    return chosen_tasks(experiment, experiment.eval.tasks, experiment.held_out_splits)


def check_prompts(experiment: Experiment) -> None:
    """Refuse a prompt pack in another grammar than the environment's, by replaying an expert. Raises ConfigError."""
    check_examples = extras(experiment.environment).check_examples
    if check_examples is None:
        return
    examples: tuple[str, ...] = ()
    if experiment.actor.kind == "react":
        examples = load_pack(experiment.actor.prompts, experiment.environment.name).actions
    check_examples(experiment.environment, experiment.seed, examples)


def reflection_renderer(experiment: Experiment) -> Render:
    """Return the function that renders a failure as the reflector's prompt. Raises ConfigError, MissingInput."""
    render = _renderer(experiment)
    if experiment.reflector.history == "all":
        return render
    return lambda failure, memory: render(failure, memory.model_copy(update={"earlier": ()}))


def _renderer(experiment: Experiment) -> Render:
    view, environment = experiment.reflector.view, experiment.environment
    views = extras(environment).views
    if view in views:
        return views[view]
    if not reads_pack(experiment):
        choices = ", ".join(("full", "actor", *views))
        raise ConfigError(f"reflector.view={view} does not exist for {environment.name}: set it to one of {choices}.")
    pack = load_pack(experiment.actor.prompts, environment.name)
    if view == "full":
        return partial(reflection_prompt, pack, experiment.reflector.prompt_characters)
    if experiment.actor.kind != "react":
        raise ConfigError("reflector.view=actor goes on in the prompt of a ReAct actor: set actor.kind=react.")
    return partial(adaptation_prompt, pack)


def reads_pack(experiment: Experiment) -> bool:
    """Return True if the text of the reflector's prompt comes from the prompt pack."""
    return experiment.reflector.view in ("full", "actor")
