"""Import paths of the four stages: at the top level of a checkout, below `retroformer` in an installed wheel."""

from importlib.util import find_spec
from typing import Literal

Stage = Literal["collect", "train", "serve", "eval"]


def stage_package(name: Stage) -> str:
    """Return the import path of a stage, to import it or to run it with `python -m`."""
    bundled = f"retroformer.{name}"
    return bundled if find_spec(bundled) is not None else name
