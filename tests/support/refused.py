"""Runner of a command that must refuse its input: in little memory, with exit status 1, and in one sentence."""

import resource
import subprocess
import sys
from pathlib import Path

_ADDRESS_SPACE = 2 << 30
"""Address space limit: all our imports map less than 1 GiB, and an input that fills the memory soon exceeds 2 GiB."""


def refusal(*words: str, cwd: Path, stdin: bytes = b"") -> str:
    """Return the standard error of `python -m WORDS`, which must end as a proper refusal."""

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))

    ended = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        timeout=300,
        preexec_fn=little_memory,
    )
    said = ended.stderr.decode()
    assert "Traceback" not in said, said
    assert said.count("\n") == 1, said
    assert ended.returncode == 1
    return said.strip()
