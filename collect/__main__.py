"""python -m collect [warm | import] EXPERIMENT.yaml [LOGS] [key=value ...] [--dry-run] [--json]."""

import asyncio
from pathlib import Path

from retroformer.assembly import read_page
from retroformer.errors import ConfigError, asks_for_help, run_command

USAGE = """
  python -m collect EXPERIMENT.yaml [key=value ...] [--dry-run]
  python -m collect warm EXPERIMENT.yaml [key=value ...]
  python -m collect import EXPERIMENT.yaml LOGS [key=value ...] [--json]"""


def main(arguments: list[str]) -> None:
    """Rate reflections; or write advice for the warm start; or import recorded logs."""
    if asks_for_help(arguments):
        print(f"Usage:{USAGE}")
        return
    flags = {word for word in arguments if word.startswith("-")}
    words = [word for word in arguments if word not in flags]
    command = words.pop(0) if words and words[0] in ("warm", "import") else "rate"
    if unknown := flags - {"rate": {"--dry-run"}, "warm": set(), "import": {"--json"}}[command]:
        raise ConfigError(f"{' '.join(sorted(unknown))} is not an option here. Usage:{USAGE}")
    if command == "import":
        from collect.imported import import_logs

        logs = next((word for word in words[1:] if "=" not in word or Path(word).exists()), None)
        if logs is None:
            raise ConfigError(f"Name the page and the logs to import. Usage:{USAGE}")
        words.remove(logs)
        print(import_logs(read_page(words, USAGE), logs, as_json="--json" in flags))
        return
    page = read_page(words, USAGE)
    if command == "warm":
        from collect.warm import write_advice

        print(asyncio.run(write_advice(page)))
    elif "--dry-run" in flags:
        from collect.plan import describe_plan

        print(describe_plan(page))
    else:
        from collect.rate import rate_reflections

        print(asyncio.run(rate_reflections(page)))


if __name__ == "__main__":
    run_command(main)
