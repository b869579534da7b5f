"""Names of a run's adapters, and of the stages that train them: `STAGE[-VARIANT]`, in later rounds with `-ROUND`."""

import re

from retroformer.config.sections.train import VARIANT

ADVISERS = ("warm", "sft", "dpo", "grpo", "ppo")
"""Stages whose adapters write advice, from the least to the most trained."""
REWARD = "reward"
"""Stage of the reward model. It is not served itself; it chooses among the candidates for names like `sft+best8`."""
ACTORS = ("actor", "sac")
"""Stages whose adapters play: an actor taught by scripted play, and one trained by SAC, but never the reflector."""
STAGES = (*ADVISERS, REWARD, *ACTORS)
REFLECTOR = "reflector"
"""Name under which a server serves the promoted adapter or, before the first promotion, the last finished one."""
FOLDER_NAME = re.compile(rf"(?P<stage>{'|'.join(STAGES)})(-(?P<variant>{VARIANT}))?(-(?P<round>[1-9][0-9]*))?")
"""Name of an adapter's folder in runs/RUN."""


def training_command(name: str) -> str:
    """Return the command that trains the adapter of this name with a config that sets its variant, for an error."""
    folder = FOLDER_NAME.fullmatch(name)
    later = f" round={folder['round']}" if folder and folder["round"] else ""
    return f"`retroformer train {folder['stage'] if folder else 'STAGE'} EXPERIMENT.yaml{later}`"
