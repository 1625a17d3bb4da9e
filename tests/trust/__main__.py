"""``python -m tests.trust [STACK…]``: tries every patch and prints the counts the README quotes.

python -m tests.trust --orders 40 --faults 600 --rounds 10000 tf457-ds0182
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.trust import stacks

PROGRAMS = Path(__file__).resolve().parents[1] / "innocents" / "programs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust")
    parser.add_argument("stacks", nargs="*", default=["tf457-ds0182"])
    parser.add_argument("--orders", type=int, default=8, help="orders of events for each patch and target")
    parser.add_argument("--faults", type=int, default=60, help="faults for each patch and target")
    parser.add_argument(
        "--rounds", type=int, default=100, help="times each target is undone and patched again"
    )
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds a stack may take")
    asked = parser.parse_args()
    totals: Counter[str] = Counter()
    patches: set[str] = set()
    found: list[str] = []
    for stack in asked.stacks:
        numbers = {"orders": asked.orders, "faults": asked.faults, "rounds": asked.rounds, "threads": 2}
        for report in stacks.run(stack, asked.limit, **numbers):
            totals.update({name: report.get(name, 0) for name in ("orders", "faults", "rounds", "threads")})
            patches |= set(report.get("patches", ()))
            found += [f"{stack}: {words}" for words in report["found"]]
    print(f"stacks: {', '.join(asked.stacks)}; patches: {len(patches)}")
    print(", ".join(f"{name}: {totals[name]}" for name in ("orders", "faults", "rounds", "threads")))
    print(f"innocent programs (make test runs them): {len([*PROGRAMS.glob('*.txt')])}")
    print(f"lost or harmed: {len(found)}")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
