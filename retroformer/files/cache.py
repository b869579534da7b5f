"""Cache folder for files that are made once and used by every experiment."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $RETROFORMER_CACHE, or ~/.cache/retroformer. It may not exist yet."""
    folder = os.environ.get("RETROFORMER_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "retroformer"
