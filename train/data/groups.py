"""Groups of stored reflections on one prompt, with their tokens and ratings, for GRPO without fresh responses."""

from collections.abc import Iterable
from typing import NamedTuple

from retroformer.errors import ConfigError
from retroformer.records import DrawnToken, RatedReflection

from .samples import Prompt


class RatedResponse(NamedTuple):
    """A reflection in tokens, as it was sampled."""

    drawn: tuple[DrawnToken, ...]
    rating: float


class RatedGroup(NamedTuple):
    """Reflections on one prompt whose ratings differ."""

    prompt: Prompt
    responses: tuple[RatedResponse, ...]


def rated_groups(reflections: Iterable[RatedReflection]) -> list[RatedGroup]:
    """Group reflections by their prompt, in the order of first appearance; groups with equal ratings are left out.

    Raises:
        ConfigError: a reflection was stored without its tokens, or was sampled at another temperature than 1, so that
            the probability with which it was sampled is unknown.
    """
    groups = dict[Prompt, list[RatedResponse]]()
    for rated in reflections:
        reflection = rated.reflection
        if reflection.drawn is None or reflection.sampling.temperature != 1.0:
            raise ConfigError(
                f"The reflection {rated.key.candidate} on {rated.key.task_id!r} (trial {rated.key.trial}, "
                f"{rated.key.arm}) does not say how likely it was when it was sampled: collect with "
                "reflector.tokens=true and reflector.temperature=1, or set train.grpo.reward to model or live."
            )
        groups.setdefault(reflection.prompt, []).append(RatedResponse(reflection.drawn, rated.rating))
    return [
        RatedGroup(prompt, tuple(responses))
        for prompt, responses in groups.items()
        if len({response.rating for response in responses}) > 1
    ]
