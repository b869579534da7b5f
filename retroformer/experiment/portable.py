"""A config for another process of a stage, which may be on another machine and lack passwords and keys."""

import os
import pickle
from collections.abc import Iterator
from typing import NamedTuple, Self

from retroformer.experiment.parts import LoadedConfig


class PortableConfig(NamedTuple):
    """A config on its way to a worker, with its passwords and API keys: it must not be written to a file."""

    pickled: bytes
    keys: dict[str, str]
    """API keys by the environment variables that the config names."""

    @classmethod
    def of(cls, config: LoadedConfig) -> Self:
        """Pack a config with the API keys of this process."""
        names = _values_of("api_key_env", config.experiment.model_dump())
        return cls(pickle.dumps(config), {name: os.environ[name] for name in names if name in os.environ})

    def unpacked(self) -> LoadedConfig:
        """Return the config, and put its API keys into the environment of this process."""
        os.environ.update(self.keys)
        config: LoadedConfig = pickle.loads(self.pickled)
        return config


def _values_of(name: str, settings: object) -> Iterator[str]:
    """Yield the texts under this name at any depth."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            if key == name and isinstance(value, str):
                yield value
            yield from _values_of(name, value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _values_of(name, value)
