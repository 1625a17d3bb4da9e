"""Programs on two, three and four ranks: who trains with whom, and what vlmpatch says to whom.

    python -m tests.lab.together --out DIR [--patched] CASE ...

runs inside a stack's environment from the root of the clone. A case is one of ``together_cases.CASES``; its
ranks are forked and meet over gloo. One JSON line a case goes to standard output: for each rank the numbers
that the case returns, and the collectives that a patch started there, with the ranks of their group.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce", "barrier")
PATCHES = ("vlmpatch.patches.", "patches.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.together")
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--patched", action="store_true", help="import vlmpatch first")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a case may take")
    asked = parser.parse_args()
    if asked.patched:
        import vlmpatch  # noqa: F401
    from tests.lab.together_cases import CASES
    from vlmpatch_lab import engines

    engines.preload_engine()
    for name in asked.cases:
        print(json.dumps(run(name, CASES[name].world, asked.out / name, asked.limit)), flush=True)


def run(name: str, world: int, folder: Path, limit: float) -> dict[str, Any]:
    """Fork the ranks of one case; returns what each reports, and which had to be killed."""
    from vlmpatch_lab import forks
    from vlmpatch_lab.ports import free_port

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    codes = forks.run(member, name, world, folder, world=world, port=free_port(), limit=limit)
    hung = [rank for rank, code in enumerate(codes) if code == -signal.SIGKILL]
    written = [folder / f"rank{rank}.json" for rank in range(world)]
    found = [json.loads(path.read_text()) if path.exists() else {"error": "killed"} for path in written]
    return {"case": name, "ranks": found, "hung": hung, "codes": codes}


def member(name: str, world: int, folder: Path, rank: int, port: int) -> None:
    """One rank."""
    from tests.lab.together_cases import CASES
    from vlmpatch_lab import collectives, engines, ranks

    ranks.log_to(folder / f"rank{rank}.log")
    report: dict[str, Any] = {}
    try:
        collectives.wait_for_every_collective()  # first: DeepSpeed keeps the functions it finds
        engines.answer_for_cpu()
        report["said"] = said = Said().listen()
        known = CASES[name]
        with ranks.process_group(rank, port, world) if known.meets else contextlib.nullcontext():
            report["numbers"] = known.run(rank, folder)
        report["said"] = said.heard
    except Exception as error:
        traceback.print_exc()
        report |= {"error": f"{type(error).__name__}: {error}", "said": []}
        raise SystemExit(1) from None
    finally:
        (folder / f"rank{rank}.json").write_text(json.dumps(report))


class Said:
    """The collectives that patches start on this rank: which function, and the ranks of the group."""

    def __init__(self) -> None:
        self.heard: list[list[Any]] = []

    def listen(self) -> Said:
        import deepspeed.comm
        import torch.distributed as dist

        for module in (dist, deepspeed.comm):
            for name in COLLECTIVES:
                if hasattr(module, name):
                    setattr(module, name, self._noting(getattr(module, name)))
        return self

    def _noting(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def call(*args: Any, **kwargs: Any) -> Any:
            import torch.distributed as dist

            caller = sys._getframe(1)
            module = str(caller.f_globals.get("__name__"))
            if module.startswith(PATCHES):
                patch = module.partition("patches.")[2]
                group = dist.get_process_group_ranks(kwargs.get("group") or dist.group.WORLD)
                self.heard.append([f"{patch}.{caller.f_code.co_name}", group])
            return collective(*args, **kwargs)

        return call


if __name__ == "__main__":
    main()
