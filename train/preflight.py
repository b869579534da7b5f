"""All checks of a stage: of its config before any input is read, and of its inputs before a model is loaded.

Later code refuses only what needs the loaded model, such as packed rows that it misreads (`shared_prompt.agreement`),
and states that SAC cannot play (`sac.play`). What is missing or damaged is refused where it is read (`data.inputs`,
`adapter`).
"""

from collections.abc import Mapping, Sequence

from retroformer.config.conditions import STORED
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import check_prompts
from retroformer.config.sections.train import Grpo, Ppo, Train
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.models.adapter_weights import require_fit
from retroformer.run.adapters import model_folder
from retroformer.run.stage_metrics import require_as_trained

from . import processes
from .adapter import Adapter
from .base import CPU, device, read_config, require_same_shape
from .data.samples import require_length
from .loop import require_tracker
from .plan.estimate import require_memory
from .plan.shape import skeleton
from .reward_audit import require_better_than_chance
from .shared_prompt.agreement import require_plain_logits
from .stage import Stage
from .stage_kinds import STAGES

REWARD = "reward"
"""Role of the reward model among the adapters of a stage."""


def check_config(name: str, configs: Sequence[Config]) -> None:
    """Refuse the stage `name` by its config, or by all domains of a config that has some.

    Raises:
        ConfigError: the config does not describe such a stage; the message says what to change.
    """
    experiment = configs[0].experiment
    if experiment.domains and STAGES[name].trains_actor:
        raise ConfigError(
            f"`train {name}` trains an actor, which plays one environment, and {configs[0].path} has domains: train it "
            "with a config of its own, and serve it with serve.adapters."
        )
    if len(configs) < len(experiment.domains):
        raise ConfigError(
            f"`train {name}` trains one reflector on the facts of all domains: leave domain={experiment.domain} out."
        )
    if experiment.train.attention == "flex" and device() == CPU:
        raise ConfigError("train.attention=flex needs a GPU, and this machine has none: set train.attention=split.")
    _require_whole_groups(name, experiment.train)
    if name == "grpo" and experiment.train.grpo.reward == "live":
        _check_live_returns(experiment)
    if name == "sac":
        _check_sac(experiment)
    if name == "actor" and extras(section := experiment.environment).demonstrations is None:
        raise ConfigError(f"There is no scripted play for {section.name}: set environment.name to another environment.")


def _require_whole_groups(name: str, train: Train) -> None:
    """Refuse a batch of PPO or GRPO that cannot be divided among prompts with equally many responses."""
    settings = train.settings(name)
    if not isinstance(settings, Ppo | Grpo):
        return
    key = "group" if isinstance(settings, Grpo) else "responses_per_prompt"
    if settings.batch_size % (size := getattr(settings, key)):
        raise ConfigError(
            f"train.{name}.batch_size={settings.batch_size} is no multiple of train.{name}.{key}={size}: change one of "
            "them."
        )


def _check_live_returns(experiment: Experiment) -> None:
    if (name := experiment.train.rated_by) != STORED:
        raise ConfigError(
            f"train.rated_by={name} rates stored attempts, and train.grpo.reward=live plays new ones: leave it out, or "
            "set train.grpo.reward=model."
        )
    if experiment.domains:
        raise ConfigError(
            "train.grpo.reward=live retries the failures of one environment, and this config has domains: set "
            "train.grpo.reward=model."
        )


def _check_sac(experiment: Experiment) -> None:
    from .sac.play import offers_of

    processes.require_one("sac")
    offers_of(experiment)
    check_prompts(experiment)
    extras(experiment.environment).refuse_training(experiment.environment)
    endpoint = experiment.actor.endpoint
    if endpoint.base_url is not None:
        raise ConfigError(
            f"SAC trains the actor on this machine, and actor.endpoint.base_url={endpoint.base_url} is a server: leave "
            "it out, and name an adapter of serve.adapters, or `base`, with actor.endpoint.model."
        )
    if model_folder(experiment, endpoint.model) == experiment.stage_folder("sac"):
        raise ConfigError(
            "actor.endpoint.model=sac is the actor that this stage trains: name the model that it starts from."
        )


def preflight(
    stage: Stage, samples: str, lengths: Sequence[int], longest_row: int, adapters: Mapping[str, Adapter]
) -> None:
    """Refuse a stage by its inputs, before its base model is loaded.

    `samples` is what the error message calls its samples, whose `lengths` are in tokens, as is the longest row in
    memory. It starts from `adapters`, or uses them, by role.

    Raises:
        ConfigError: the reward model is no better than chance, a sample is too long or does not fit into the memory of
            a CPU, an adapter has another shape than train.lora or was made for another base, or the base changes its
            logits.
        MissingInput: the package of the tracker is not installed.
    """
    train = stage.experiment.train
    require_tracker(train.report_to)
    if REWARD in adapters:
        require_better_than_chance(adapters[REWARD], train.weak_reward_model)
    require_length(lengths, train.max_length, samples)
    require_memory(stage, longest_row)
    config = read_config(train.base_model)
    if stage.name == "dpo":
        # Whichever trainer is used, its measurements compute logits.
        advice = "train the reward model in place of DPO, or another train.base_model"
        require_plain_logits(config.get_text_config(), advice)
    base = skeleton(config) if adapters else None
    for role, adapter in adapters.items():
        if role != REWARD:
            require_same_shape(base, adapter.folder, train.lora)
        require_fit(base, adapter.folder, scores=REWARD in (role, adapter.metrics.stage))
        require_as_trained(adapter.folder, stage.inputs["base"])
