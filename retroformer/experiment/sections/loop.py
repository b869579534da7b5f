"""The sections of a config for the trial loop (Retroformer, Algorithm 1) and for the budget of a stage."""

import os
from typing import Annotated

from pydantic import Field

from retroformer.experiment.sections.base import Positive, Section

_MOST_ENVIRONMENT_PROCESSES = 8
"""Every process starts with the first episode and holds about 50 MB, so a large machine does not get one per core."""


class Loop(Section):
    trials: Annotated[int, Field(ge=1, le=20)] = 3
    """Number of attempts at a task, the first included (N in Retroformer's Algorithm 1)."""
    memory: Annotated[int, Field(ge=1, le=10)] = 3
    """Number of most recent reflections in the actor's memory (1 to 3 in Reflexion)."""
    last_attempt: bool = False
    """If true, the actor also sees its last attempt (episodic memory, EPM in Reflexion)."""
    repetitions: Positive = 3
    """Repetition limit: a trial ends when the same action has led to the same observation more than this many times
    (Omega of Reflexion)."""
    actions: Positive = 30
    """Largest number of actions in a trial; the trial ends when the actor wants more (epsilon of Reflexion)."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    """Number of rollouts in flight at once."""
    backend: str = "local"
    """Where tasks are played. local: in this process; ray: on a Ray cluster (needs the extra `ray`); others belong to
    installed packages. Arms that learn are always played in this process."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Number of times to retry an invalid rollout or reflection before leaving it for the next run."""

    @property
    def environment_processes(self) -> int:
        """Number of environment processes: one per CPU core, from 2 to 8, and never more than rollouts in flight.

        There are at least two because an episode that hangs blocks the others in its process.
        """
        return min(self.concurrency, max(2, min(os.cpu_count() or 1, _MOST_ENVIRONMENT_PROCESSES)))


class Spending(Section):
    """Budget of a stage at paid endpoints."""

    tokens: Positive | None = None
    """Budget in prompt plus completion tokens; the stage stops cleanly when it is spent. None: no limit."""
    dollars: Annotated[float, Field(gt=0)] | None = None
    """Budget in dollars; the stage stops cleanly when it is spent. None: no limit."""
