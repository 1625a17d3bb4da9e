"""What is said of a training that was watched: by the last rank to come, or by each rank for itself."""

from __future__ import annotations

import contextlib
import os
import sys

from vlmpatch.watch.parts import counted
from vlmpatch.watch.watcher import Report, Watcher


def conclude(watcher: Watcher) -> Verdict | None:
    """Say what was found, or that nothing was; a verdict where another rank is still to say it."""
    for finding in watcher.own:
        tell(str(finding), everywhere=True)
    verdict = Verdict(watcher)
    return None if verdict.said() else verdict


class Verdict:
    """What is said of a training that was watched."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher, self.exchange = watcher, watcher.exchange

    def said(self) -> bool:
        """Say it, where this rank trains alone or is the last to come."""
        own = self.watcher.report()
        if self.exchange is None:
            self._say([own], everywhere=several())
            return True
        try:
            reports = [Report(**report) for report in self.exchange.leave(own._asdict())]
        except Exception as error:  # the store has gone
            self._alone(repr(error))
            return True
        if len({(report.names, report.steps) for report in reports}) > 1:
            self._alone("they do not train the same parameters for as many steps")
        elif reports:
            self._say(reports)
        return bool(reports)

    def given_up(self) -> None:
        """Some rank may not have come, and will not; the first of them speaks for itself."""
        with contextlib.suppress(Exception):  # the store has gone, and the job with it
            if self.exchange is not None and self.exchange.place == 0 and not self.exchange.complete():
                self._alone("not all of them have watched this training")

    def _alone(self, reason: str) -> None:
        self.watcher.remarks.insert(0, f"the ranks were not compared: {reason}")
        self._say([self.watcher.report()], everywhere=True)

    def _say(self, reports: list[Report], everywhere: bool = False) -> None:
        watcher = self.watcher
        findings = watcher.findings(reports)
        for finding in findings:
            tell(str(finding), everywhere)
        if not findings and all(report.well for report in reports):
            trained = f"{len(watcher.trained)} trainable parameters ({counted(watcher.parts)})"
            looked = f"{watcher.steps} steps, {trained}, all reached"
            agree = ["the ranks agree"] if len(reports) > 1 and not watcher.partitioned else []
            tell("; ".join([looked, *agree, *watcher.remarks]), everywhere)
        elif findings:
            tell(f"of the parameters: {counted(watcher.parts)}", everywhere)


def tell(text: str, everywhere: bool = False) -> None:
    """To standard error: who watches wants to know that all is well, too.

    Args:
        text: one sentence or two.
        everywhere: it is of this rank alone, whose number is shown.
    """
    whose = f"rank {_rank()}: " if everywhere else ""
    print(f"vlmpatch watch: {whose}{text}", file=sys.stderr, flush=True)


def several() -> bool:
    """Whether this process is one of several."""
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def _rank() -> str:
    """As the job counts it; a script may have taken the launcher's variables away."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return str(dist.get_rank())
    return os.environ.get("RANK", "0")
