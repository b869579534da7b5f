"""`make gpu`: checks what a CPU cannot, on a machine with a card, and writes one report.

    python -m benchmarks.gpu [--out runs/gpu] [--seconds 540] [--only PART_OF_A_NAME]

It works piece by piece. The result of a piece is a file in OUT/pieces; what has a result on this device and no fault is
not repeated. After `--seconds` no new piece is begun, and the same command goes on later. OUT/report.md has what is
finished. Models have random weights in the shapes of real ones, or are the embedded model, so no network is
needed, except to install the TRL that is measured beside.

Without a card everything runs on the CPU with tiny shapes, which checks the kit and nothing else.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu import demo, gradients, kernels, serving, steps, trl
from benchmarks.gpu.piece import Bench, Piece, Result
from retroformer.run.provenance import package_versions

SECTIONS = (kernels, gradients, steps, trl, serving, demo)
"""Modules with a TITLE, COLUMNS, `pieces` and a NOTE, in the order of the report."""


def main() -> int:
    """Run the pieces that are left; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    bench = Bench(chosen.out)
    began, left = time.monotonic(), 0
    for piece in _pieces(bench):
        earlier = bench.result(piece.name)
        if chosen.only not in piece.name or (earlier and not earlier.fault):
            continue
        if time.monotonic() - began > chosen.seconds:
            left += 1
            continue
        result = bench.run(piece)
        print(f"{piece.name}: {result.seconds:.0f} s, {'; '.join(result.cells)} {result.fault}", flush=True)
    report = chosen.out / "report.md"
    report.write_text("\n".join(_report(bench)))
    print(f"{report}; {left} pieces are left" + (": run the same command again" if left else ""))
    results = [bench.result(piece.name) for piece in _pieces(bench)]
    return 1 if any(result.fault for result in results if result) else 0


def _pieces(bench: Bench) -> Iterator[Piece]:
    for section in SECTIONS:
        yield from section.pieces(bench)


def _report(bench: Bench) -> Iterator[str]:
    yield "# What runs on a GPU\n"
    versions = {name: version for name, version in package_versions().items() if name in ("torch", "bitsandbytes")}
    yield f"{bench.device_name}; Python {platform.python_version()}, {json.dumps(versions)[1:-1]}.\n"
    for section in SECTIONS:
        rows = [(piece.name, bench.result(piece.name)) for piece in section.pieces(bench)]
        finished = [(name, result) for name, result in rows if result is not None]
        if not finished:
            continue
        yield f"## {section.TITLE}\n\n{section.NOTE}\n"
        yield f"| | {' | '.join(section.COLUMNS)} | seconds |"
        yield "|---" * (len(section.COLUMNS) + 2) + "|"
        for name, result in finished:
            yield _row(name.partition("/")[2], result, len(section.COLUMNS))
        if len(finished) < len(rows):
            yield f"\n{len(rows) - len(finished)} of {len(rows)} are not finished."
        yield ""


def _row(name: str, result: Result, columns: int) -> str:
    cells = list(result.cells) if not result.fault else [f"**{result.fault}**"]
    return f"| {name} | {' | '.join(cells + [''] * (columns - len(cells)))} | {result.seconds:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
