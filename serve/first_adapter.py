"""The adapter that a run serves first as `reflector`: its last finished stage, untested.

Any later adapter waits for `retroformer promote`.
"""

import logging
from pathlib import Path

from retroformer.experiment.adapters import REFLECTOR, finished_advisers
from retroformer.experiment.config import Experiment
from retroformer.promotions.history import History, name_of
from retroformer.provenance import folder_sha256

logger = logging.getLogger(__name__)


def record_first_adapter(experiment: Experiment, config_path: Path) -> None:
    """Record the last finished stage as the run's reflector if nothing is recorded, with a warning.

    If something is, warn about an adapter that was trained later and has not been tested yet.

    Raises:
        ConfigError: another server has recorded a first adapter in the meantime.
        DamagedFile: a record is damaged.
    """
    advisers = finished_advisers(experiment)
    if REFLECTOR in experiment.serve.adapters or not advisers:
        return
    history, name = History(experiment.folder), advisers[-1]
    records = history.records()
    if not records:
        first = history.keep(name, experiment.folder / name)
        history.append(records, "first", first, "nothing was served before")
        logger.warning(
            "reflector is %s, which has not been tested: `retroformer promote %s %s --against none` tests it against "
            "no advice.",
            name,
            config_path,
            name,
        )
        return
    sha256 = folder_sha256(experiment.folder / name)
    if all(record.adapter is None or record.adapter.sha256 != sha256 for record in records):
        logger.warning(
            "reflector stays %s: `retroformer promote %s %s` tests the newer adapter, and serves it if it is better.",
            name_of(history.current()),
            config_path,
            name,
        )
