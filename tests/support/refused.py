"""A command that has to refuse its input: in little memory, with exit status 1, and in one sentence."""

import resource
import subprocess
import sys
from pathlib import Path

_ADDRESS_SPACE = 2 << 30
"""What a process with all our imports maps is under 1 GiB; an input that fills the memory passes 2 GiB soon."""


def refusal(*words: str, cwd: Path, stdin: bytes = b"") -> str:
    """What `python -m WORDS` says on standard error where it ends as a refusal has to."""

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
