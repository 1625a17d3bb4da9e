"""What ``import vlmpatch`` costs over a bare interpreter, beside the imports it is measured against.

``python -m bench.import_time [RUNS]``: CPU milliseconds (user + system), best of RUNS, run in turn so
that a machine that slows down slows all of them. Quote the ratio.
"""

from __future__ import annotations

import os
import subprocess
import sys

STATEMENTS = {
    "bare interpreter": "pass",
    "vlmpatch": "import vlmpatch",
    "wrapt": "import wrapt",
    "packaging.specifiers": "import packaging.specifiers",
    "importlib.metadata": "import importlib.metadata",
}


def cpu_ms(statement: str) -> float:
    """CPU time of one interpreter that runs ``statement``, in milliseconds."""
    # Without byte code on disk every start would measure the compiler.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, "-c", statement], env=env)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{statement!r} failed")
    return (used.ru_utime + used.ru_stime) * 1000


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    best = dict.fromkeys(STATEMENTS, float("inf"))
    for _ in range(runs):
        for name, statement in STATEMENTS.items():
            best[name] = min(best[name], cpu_ms(statement))
    bare = best.pop("bare interpreter")
    print(f"bare interpreter {bare:.0f} ms; over it, best of {runs}:")
    for name, value in best.items():
        print(f"  {name:22}{value - bare:6.1f} ms   {(value - bare) / (best['wrapt'] - bare):.2f} x wrapt")


if __name__ == "__main__":
    main()
