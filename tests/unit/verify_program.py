"""``verify`` in the middle of its runs: one process that never ends. ``test_verify.py`` sends it signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator

from vlmpatch.tools import cli
from vlmpatch.tools.cases import Case
from vlmpatch.tools.verify import running
from vlmpatch.tools.view.language import Words

FOR_EVER = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"


def aloud(said: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
    def spoken(*arguments: object) -> Iterator[str]:
        for line in said(*arguments):
            print(line, flush=True)
            yield line

    return spoken


def main() -> int:
    running.Side._command = lambda *arguments: [sys.executable, "-c", FOR_EVER]  # type: ignore[method-assign]
    running.spoken = aloud(running.spoken)
    running.try_cases([Case("a-case")], "cpu", Words("en"))
    return 1


if __name__ == "__main__":
    # Under nohup or as a shell's background job the tests ignore signals, and a child inherits that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main = main  # type: ignore[assignment]
    sys.exit(cli.entry_point())
