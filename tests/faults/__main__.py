"""`make faults`: makes hundreds of faults and counts the facts that were lost, doubled or silently changed.

python -m tests.faults [--seed N] [--share X] [--only NAME]
"""

import argparse
import random
import sys
import time

from tests.faults.campaigns import CAMPAIGNS, run


def main() -> int:
    """Run the campaigns; return 1 if a fault did harm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--share", type=float, default=1.0, help="share of the usual number of faults")
    parser.add_argument("--only", default="", help="part of the names of the campaigns to run")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}\n\n| fault | number | violations | seconds |\n|---|---|---|---|", flush=True)
    sentences, left_out, faults = list[str](), list[str](), 0
    for name in CAMPAIGNS:
        if chosen.only not in name:
            continue
        began = time.monotonic()
        outcome = run(name, chosen.seed, chosen.share)
        faults += outcome.faults
        sentences += [f"{name}: {sentence}" for sentence in outcome.violations]
        seconds = time.monotonic() - began
        print(f"| {name} | {outcome.faults} | {len(outcome.violations)} | {seconds:.0f} |", flush=True)
        for sentence in outcome.violations:  # The end of a long run repeats them.
            print(sentence, file=sys.stderr, flush=True)
        left_out += [f"Left out: {name}, as {outcome.left_out}."] if outcome.left_out else []
    print(f"\n{faults} faults, {len(sentences)} violations (seed {chosen.seed})")
    print("\n".join([*left_out, *sentences]))
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main())
