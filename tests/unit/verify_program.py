"""``verify`` in the middle of its runs: one process that never ends. ``test_verify.py`` sends it signals."""

from __future__ import annotations

import sys

from vlmpatch.tools import cli
from vlmpatch.tools.cases import Case
from vlmpatch.tools.verify import running
from vlmpatch.tools.view.language import Words

FOR_EVER = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"


def spoken(process: object) -> list[str]:
    line = process.stdout.readline()  # type: ignore[attr-defined]
    print(line, end="", flush=True)
    return [process.stdout.readline()]  # type: ignore[attr-defined]


def main() -> int:
    running.Side._command = lambda *arguments: [sys.executable, "-c", FOR_EVER]  # type: ignore[method-assign]
    running.spoken = spoken  # type: ignore[assignment]
    running.try_cases([Case("a-case")], "cpu", Words("en"))
    return 1


if __name__ == "__main__":
    cli.main = main  # type: ignore[assignment]
    sys.exit(cli.entry_point())
