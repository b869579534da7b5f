"""Conditions of imported cases: where they come from, and how their failures are shown to the reflector.

They name no environment, actor or loop, as an import cannot know them. So imported cases are never mixed with attempts
that `collect` makes under a config, and cases of two sources are not mixed with each other.
"""

from typing import Any

from retroformer.experiment.conditions import prompts_sha256
from retroformer.experiment.config import Experiment
from retroformer.experiment.views import reads_pack

RETURN = "score"
"""Name of the return that rates imported cases."""


def conditions_of_cases(experiment: Experiment, source: str) -> dict[str, Any]:
    """Return the conditions of cases from this source. Raises MissingInput if there is no such prompt pack."""
    return {
        "recorded": {
            "return": RETURN,
            "source": source,
            "view": experiment.reflector.view,
            "prompts_sha256": prompts_sha256(experiment) if reads_pack(experiment) else None,
        }
    }
