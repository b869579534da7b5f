"""The arms whose advice a language model writes: the trained one, any other, or the teacher."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import model_validator

from retroformer.agents.arms.arm import Arm, ArmSetting, Models
from retroformer.config.sections.base import Endpoint, ReflectorSection, best_of
from retroformer.errors import ConfigError
from retroformer.files.document import Words, code, join_words


class ModelArm(Arm):
    """Advice of a model at the reflector's endpoint."""

    kind: Literal["model"] = "model"
    model: Models = "base"
    """Model that writes the advice. `sft+best8` is the best of 8 answers by the reward model; several names are
    training seeds of one method."""
    history: Literal["all", "last"] | None = None
    """Attempts that the prompt shows, for a model trained with another prompt than the others; None: as in
    reflector.history."""

    @model_validator(mode="after")
    def _pools_the_seeds_of_one_role(self) -> Self:
        if isinstance(self.model, tuple) and isinstance(self.actor_model, tuple):
            raise ValueError("model and actor_model both name training seeds; give one of them a single name")
        return self

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model,) if isinstance(self.model, str) else self.model

    def split(self) -> Mapping[str, Self]:
        if isinstance(self.model, tuple):
            return {model: self.model_copy(update={"model": model}) for model in self.model}
        return super().split()

    def with_prefix(self, prefix: str, model: str | None = None) -> Self:
        return self if model is None else self.model_copy(update={"model": model})

    def check(self, here: str, setting: ArmSetting) -> None:
        if any(map(best_of, self.models)) and not setting.reflector.temperature:
            raise ConfigError(
                f"{here}.model: the best of several answers is sampled at reflector.temperature, and at 0 all answers "
                "are the same; set it above 0."
            )

    def writer(self, reflector: ReflectorSection) -> Endpoint:
        (model,) = self.models
        return reflector.endpoint.named(model)

    def temperature(self, setting: ArmSetting) -> float:
        """Return the temperature of the evaluation; best-of-n samples as collection does."""
        return setting.reflector.temperature if any(map(best_of, self.models)) else setting.temperature

    def describe(self) -> Words:
        sees = {"all": ", from all attempts", "last": ", from the last attempt", None: ""}[self.history]
        if isinstance(self.model, str):
            return "written by the model ", code(self.model), sees
        models = join_words(", ", map(code, self.model))
        return "written by the models ", *models, f"{sees}; mean over these training seeds"


class TeacherArm(Arm):
    """Advice of the teacher, which a trained model imitates."""

    kind: Literal["teacher"] = "teacher"

    def check(self, here: str, setting: ArmSetting) -> None:
        if setting.reflector.teacher is None:
            raise ConfigError(
                f"{here}.kind: the config has no teacher; name its base_url and model in reflector.teacher, or leave "
                "the arm out."
            )

    def writer(self, reflector: ReflectorSection) -> Endpoint | None:
        return reflector.teacher

    def describe(self) -> Words:
        return "written by the teacher (", code("reflector.teacher"), ")"
