"""Opens the store that a config names."""

from retroformer.experiment.config import Experiment
from retroformer.store import Store


def open_store(experiment: Experiment) -> Store:
    """Open the store of an experiment. Raises StoreError."""
    return Store(experiment.store_url, experiment.name)
