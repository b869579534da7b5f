"""Settings that the sections of several training stages share: optimiser steps and micro-batches."""

from retroformer.experiment.sections.base import Positive, Rate, Section


class Steps(Section):
    """Optimiser steps of a stage."""

    learning_rate: Rate
    """Peak learning rate. For PPO and GRPO it is constant after warm-up, for SAC from the first step, and for the other
    stages it decays linearly after warm-up."""
    batch_size: Positive
    """Number of samples per optimiser step: texts, pairs, responses, or for SAC environment steps. Texts and pairs of
    one failure stay in one batch, so their batches have about this size."""


class Rowwise(Steps):
    """Micro-batches of a stage that trains an actor."""

    micro_batch_size: Positive
    """Number of samples in memory at once; gradients are accumulated over micro-batches up to `batch_size`."""


class Groupwise(Steps):
    """Micro-batches of a stage that trains a reflector: a prompt and all its responses are in one row."""

    micro_batch_tokens: Positive = 4096
    """Number of tokens in memory at once, with padding; gradients are accumulated over micro-batches. A row that would
    be longer is divided, and its prompt read again for each part."""
    epochs: Positive = 1
    """Number of passes over the data; for PPO and GRPO, over each batch of responses. As for every setting of a stage,
    a config that omits it gets that stage's own default."""
