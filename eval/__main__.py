"""python -m eval EXPERIMENT.yaml [key=value ...]."""

import asyncio

from eval.compare import compare_arms
from retroformer.assembly import read_page
from retroformer.errors import asks_for_help, run_command

USAGE = "python -m eval EXPERIMENT.yaml [key=value ...]"


def main(arguments: list[str]) -> None:
    """Play every arm on the held-out tasks and write the report."""
    if asks_for_help(arguments):
        print(f"Usage: {USAGE}")
        return
    print(asyncio.run(compare_arms(read_page(arguments, USAGE))))


if __name__ == "__main__":
    run_command(main)
