"""``python -m tests.trust [STACK…]``: tries every patch and prints the counts that docs/evidence.md quotes.

python -m tests.trust --rounds 400 tf457-ds0182 --innocents tf445-ds0154 tf523-ds0198 neighbours
python -m tests.trust tf457-ds0182 --faults 2 --rounds 4 --record    keeps them, where nothing is lost
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.innocents.test_innocents import different, perform
from tests.trust import record, stacks

COUNTS = ("orders", "faults", "rounds", "threads")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust")
    parser.add_argument(
        "stacks", nargs="*", help="every patch on each of these; tf457-ds0182 when nothing is said"
    )
    parser.add_argument("--orders", type=int, default=8, help="orders of events for each patch and target")
    parser.add_argument("--faults", type=int, default=60, help="faults for each patch and target")
    parser.add_argument(
        "--rounds", type=int, default=100, help="times each target is undone and patched again"
    )
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds a stack may take")
    parser.add_argument("--innocents", nargs="*", default=[], metavar="STACK", help="run their programs too")
    parser.add_argument("--record", action="store_true", help="keep the counts in data/trust.csv")
    asked = parser.parse_args()
    asked.stacks = asked.stacks or ([] if asked.innocents else ["tf457-ds0182"])
    totals: Counter[str] = Counter()
    patches: set[str] = set()
    lost: list[str] = []
    for stack in asked.stacks:
        numbers = {"orders": asked.orders, "faults": asked.faults, "rounds": asked.rounds, "threads": 2}
        for report in stacks.run(stack, asked.limit, **numbers):
            totals.update({name: report.get(name, 0) for name in COUNTS})
            patches |= set(report.get("patches", ()))
            lost += [f"{stack}: {words}" for words in report["found"]]
    ran, harmed = innocents(asked.innocents)
    if asked.stacks:
        print(f"stacks: {', '.join(asked.stacks)}; patches: {len(patches)}")
        print(", ".join(f"{name}: {totals[name]}" for name in COUNTS))
    if asked.innocents:
        print(f"innocents on {', '.join(asked.innocents)}: {ran}")
    print(f"lost: {len(lost)}, harmed: {len(harmed)}")
    print("\n".join(lost + harmed))
    if asked.record and not lost + harmed:
        record.write({"patches": len(patches), **totals})
    return 1 if lost or harmed else 0


def innocents(names: list[str]) -> tuple[int, list[str]]:
    """How many programs ran on these stacks, bare and with vlmpatch, and which were not the same."""
    ran, harmed = 0, []
    for name in names:
        with TemporaryDirectory() as folder:
            results = perform(name, Path(folder))
            programs = [path.stem for path in sorted((results / "bare").glob("*.json"))]
            ran += len(programs)
            harmed += [
                f"{name}: {program}: {words}"
                for program in programs
                if (words := different(results, program))
            ]
    return ran, harmed


if __name__ == "__main__":
    sys.exit(main())
