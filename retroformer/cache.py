"""Where things that are made once and used by every experiment are kept."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$RETROFORMER_CACHE, or ~/.cache/retroformer. It need not exist yet."""
    named = os.environ.get("RETROFORMER_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "retroformer"
