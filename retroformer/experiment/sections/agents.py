"""The sections of a config for the actor, the evaluator and the reflector."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from retroformer.experiment.sections.base import Positive, Section
from retroformer.experiment.sections.endpoint import WHOLE_DISTRIBUTION, Endpoint


class ActorSection(Section):
    kind: str = "rule"
    """Kind of actor. react: few-shot ReAct; tools: native tool calling of a chat endpoint; chooser: one of the actions
    that the environment lists; otherwise an actor of the environment. ALFWorld has rule, a program, and household, a
    model trained on its compact text; programming has programmer, which writes tests and a program."""
    endpoint: Endpoint = Endpoint()
    """Endpoint of the actor's model; the rule-based actor has none."""
    prompts: str = "default"
    """Prompt pack: a name in retroformer/packs or the path of a YAML file."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature. At 0, trial 0 repeats exactly, so that all arms can share it."""
    max_new_tokens: Positive = 100
    """Largest number of tokens of one thought and action."""
    choice: Literal["free", "admissible"] = "free"
    """Output allowed to kind household. free: any text; admissible: only actions that are possible now (our own server
    only)."""


class EvaluatorSection(Section):
    kind: str = "oracle"
    """Rule by which the agent tries again; what is solved is for the environment to say. oracle: the attempt failed;
    heuristic: it ended by repetition or took too long (Reflexion, section 4.1); tests: it fails the tests that the
    agent wrote (programming); model: a language model decides."""
    endpoint: Endpoint = Endpoint()
    """Endpoint of the model, for kind model."""

    @property
    def last_counts(self) -> bool:
        """True if the last attempt at a task counts, even after one that solved it: a program that is handed in."""
        return self.kind == "tests"


_TRUNCATING = frozenset({"temperature", "logit_bias", *WHOLE_DISTRIBUTION})
"""Fields of a request that change the distribution from which tokens are sampled."""


class ReflectorSection(Section):
    endpoint: Endpoint = Endpoint()
    """Endpoint of the reflector's model."""
    view: str = "full"
    """Form of the trajectory in the prompt. full: the whole attempt; compact: for small models, ALFWorld only; actor:
    continues the actor's own prompt, for one model that acts and adapts (SALA)."""
    history: Literal["all", "last"] = "all"
    """Attempts that the prompt shows. all: every attempt at the task so far, as far as the view has room; last: the
    last one, with the advice that it was given (as in the papers)."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.9
    """Sampling temperature of candidates in collect; eval uses eval.temperature, and refuses this key in a config that
    only evaluates."""
    max_new_tokens: Positive = 128
    """Largest number of tokens of one reflection (128 in the paper)."""
    stop: tuple[str, ...] = ()
    """Strings that end a reflection, such as a newline if the prompt asks for a single line."""
    tokens: bool = False
    """Whether reflections keep their tokens with the log-probabilities under the model that wrote them, as
    `train.grpo.reward: stored` needs. The endpoint must return them: `retroformer serve`, or vLLM, with api: chat."""
    prompt_characters: Annotated[int, Field(ge=1000)] = 24000
    """Largest number of characters of a trajectory in the prompt; a longer one is shortened, longest observations
    first, and its end is kept."""

    @field_validator("tokens")
    @classmethod
    def _samples_from_the_whole_distribution(cls, tokens: bool, info: ValidationInfo) -> bool:
        endpoint = info.data.get("endpoint")
        if tokens and endpoint is not None and (truncating := sorted(_TRUNCATING & endpoint.extra_body.keys())):
            raise ValueError(
                f"The log-probabilities of tokens are those of the whole distribution at temperature 1: leave "
                f"{', '.join(truncating)} out of endpoint.extra_body"
            )
        return tokens
