"""Run a module as `python -m` does, and exit when standard input closes: no server outlives its supervisor.

Usage: python -m serve.child MODULE [ARGUMENT ...]
"""

import os
import runpy
import sys
import threading


def exit_when_input_closes() -> None:
    """Exit this process, whatever it is doing, when the process at the other end of standard input is gone."""

    def wait() -> None:
        while os.read(0, 4096):
            continue
        os._exit(1)

    threading.Thread(target=wait, name="watch standard input", daemon=True).start()


if __name__ == "__main__":
    exit_when_input_closes()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
