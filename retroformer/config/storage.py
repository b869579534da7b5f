"""Opens the store that a config names."""

from retroformer.config.experiment import Experiment
from retroformer.run.store import Store


def open_store(experiment: Experiment) -> Store:
    """Open the store of an experiment. Raises StoreError."""
    return Store(experiment.store_url, experiment.name)


def open_whole_store(experiment: Experiment) -> Store:
    """Open the store of an experiment to train on it or report it. Raises StoreError, also if a fact is damaged."""
    store = open_store(experiment)
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store
