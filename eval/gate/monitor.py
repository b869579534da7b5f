"""Watches the live outcomes of the current adapter, and rolls it back once they show that it is worse than no advice.

An agent that is improved where it runs retries a share of its tasks without advice, drawn at random. Each such retry
is compared with the mean of the advised retries since the one before: their difference is between -1 and 1, and it is
not below 0 on average unless the advice is worse than none. The differences are tested as in `eval.measure.betting`.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from statistics import fmean
from typing import NamedTuple

import numpy as np

from retroformer.coach.recorder import ADVISED_SPLIT
from retroformer.config.experiment import Experiment
from retroformer.errors import RetroformerError
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.promotions import NO_ADVICE, Evidence, History, current_of, name_of, roll_back
from retroformer.run.store import open_whole_store
from retroformer.run.store.rows import LiveRetry

from ..measure.betting import LEVEL, Floats, log_wealth

logger = logging.getLogger(__name__)


class LiveState(NamedTuple):
    evidence: Evidence
    retries: int
    """Number of retries, advised and unadvised, up to the conclusion; all of them if there is none."""
    worse: bool
    """True if the adapter is shown to be worse than no advice."""


def watch(retries: Iterable[LiveRetry], sha256: str, since: datetime, level: float) -> LiveState:
    """Test the retries after `since` that were advised by the adapter with this hash, or not advised."""
    counted = [row for row in retries if row.stored_at > since and (not row.advised or row.adapter_sha256 == sha256)]
    compared = list(_differences(counted))
    values_T = np.array([difference for difference, _ in compared], dtype=np.float64)
    wealth_T = log_wealth(-values_T)
    crossings = np.flatnonzero(wealth_T >= -np.log(level))
    pairs = int(crossings[0]) + 1 if len(crossings) else len(values_T)
    wealth = float(wealth_T[pairs - 1]) if pairs else 0.0
    evidence = evidence_of(NO_ADVICE, values_T[:pairs], wealth, level, (COLLECT, UNADVISED))
    return LiveState(evidence, compared[pairs - 1][1] if len(crossings) else len(counted), bool(len(crossings)))


def evidence_of(
    against: str, differences_T: Floats, log_wealth: float, level: float, arms: tuple[str, ...]
) -> Evidence:
    return Evidence(
        against=against,
        pairs=len(differences_T),
        better=int((differences_T > 0).sum()),
        worse=int((differences_T < 0).sum()),
        mean_difference=float(differences_T.mean()) if len(differences_T) else 0.0,
        log_wealth=log_wealth,
        level=level,
        arms=arms,
    )


def look(experiment: Experiment) -> str:
    """Look at the live outcomes once, roll back if they show the adapter to be worse, and return what was found.

    Raises RetroformerError: the store or a promotion cannot be read, or another command has changed the reflector.
    """
    history = History(experiment.folder)
    records = history.records()
    current = current_of(records)
    if current is None:
        return "No adapter is served as reflector, so there is nothing to watch."
    with closing(open_whole_store(experiment)) as store:
        retries = store.live_retries(COLLECT, UNADVISED, ADVISED_SPLIT)
    seen = watch(retries, current.sha256, records[-1].at, LEVEL)
    if not seen.worse:
        return f"reflector stays {current}: {seen.retries} live retries ({seen.evidence})."
    record = roll_back(history, records, "live outcomes are worse than without advice", seen.evidence, by_monitor=True)
    return (
        f"Rolled back: reflector is {name_of(record.adapter)}, as {current} was worse than no advice after "
        f"{seen.retries} live retries ({seen.evidence})."
    )


def keep_looking(experiment: Experiment, every_seconds: float) -> Iterator[str]:
    """Look again and again, and yield what was found whenever it is new. An error is logged; it looks again."""
    last = ""
    while True:
        try:
            finding = look(experiment)
        except RetroformerError as error:
            logger.warning("The monitor looks again in %g seconds: %s", every_seconds, error)
        else:
            if finding != last:
                yield finding
            last = finding
        time.sleep(every_seconds)


def _differences(counted: Iterable[LiveRetry]) -> Iterator[tuple[float, int]]:
    """Yield each difference, and the number of retries up to it."""
    advised = list[float]()
    for number, row in enumerate(counted, start=1):
        returned = min(1.0, max(0.0, row.returned))
        if row.advised:
            advised.append(returned)
        elif advised:
            yield fmean(advised) - returned, number
            advised = []
