"""Ranks forked from a process that has imported the stack: imports are paid once, a rank costs its work."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from vlmpatch_lab.patience import Patience

GRACE = 10.0  # seconds the other ranks may take once one has failed
WHERE = signal.SIGUSR2  # on which a rank writes to its stderr where each of its threads is
TO_TELL = 0.5  # seconds they have for that


def run(
    rank_main: Callable[..., None],
    *arguments: Any,
    world: int,
    port: int,
    limit: float,
    grace: float = GRACE,
    failed: Callable[[int], bool] = lambda rank: False,
    method: str = "fork",
) -> list[int | None]:
    """Run ``rank_main(*arguments, rank, port)`` on ``world`` ranks; returns their exit codes.

    Args:
        rank_main: what a rank does.
        arguments: what every rank is told.
        world: how many ranks.
        port: where they meet.
        limit: seconds after which ranks that live are killed, of a machine with nothing else to do; their
            stderr says where they were.
        grace: such seconds for the others once a rank failed; what they end in is part of the result.
        failed: whether a rank that has not ended yet says that it failed.
        method: ``multiprocessing``'s start method; CUDA needs ``spawn``.
    """
    # DeepSpeed and accelerate call gc.collect() in every run: through all that the stack's import left, it
    # takes half of a rank's time and copies every page. What is frozen is passed over.
    gc.freeze()
    context: Any = multiprocessing.get_context(method)
    told = (rank_main, *arguments)
    members = [context.Process(target=_rank, args=(*told, rank, port)) for rank in range(world)]
    for member in members:
        member.start()
    _wait(members, limit, grace, failed)
    return [member.exitcode for member in members]


def _wait(members: list[Any], limit: float, grace: float, failed: Callable[[int], bool]) -> None:
    patience, one_failed = Patience(limit), False
    while (alive := [member for member in members if member.is_alive()]) and not patience.over():
        if not one_failed and any(member.exitcode or failed(rank) for rank, member in enumerate(members)):
            one_failed, patience = True, Patience(min(grace, patience.seconds - patience.spent))
        alive[0].join(0.05)
    _kill(alive)
    for member in members:
        member.join()


def _rank(rank_main: Callable[..., None], *arguments: Any) -> None:
    faulthandler.register(WHERE, file=2)  # whatever that is by then
    rank_main(*arguments)


def _kill(hung: list[Any]) -> None:
    """End ranks that hang, once they have said where."""
    for member in hung:
        os.kill(member.pid, WHERE)
    for member in hung[:1]:
        member.join(TO_TELL)
    for member in hung:
        member.kill()
