"""`retroformer eval`: plays every arm on the held-out tasks and writes the report."""

import asyncio

from retroformer.config.command_line import ConfigFile, Overrides, call, example, make_app
from retroformer.errors import run_command

app = make_app()


@app.command("eval", epilog=example("eval configs/demo.yaml run=quick eval.tasks=20"))
def evaluate(config: ConfigFile, overrides: Overrides) -> None:
    """Stage 4: compare ways to retry on held-out tasks.

    Reads the tasks of eval.split and asks the served reflectors. Writes attempts to the store, by default
    runs/RUN/experience.db, and the report to runs/RUN/eval/report.md and report.html.
    """
    from retroformer.config.file import load_configs

    from .report.report import compare_arms

    print(asyncio.run(compare_arms(*load_configs(config, overrides))))


def main(arguments: list[str]) -> None:
    call(app, f"python -m {__package__}", arguments)


if __name__ == "__main__":
    run_command(main)
