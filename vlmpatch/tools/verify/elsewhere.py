"""Where a patch is proved that no tiny run can show: it takes a framework, a script, or another model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vlmpatch.catalog.model import Entry
from vlmpatch.tools.cases import Case
from vlmpatch.tools.doctor import verified


class Elsewhere(NamedTuple):
    """The proof of a patch.

    Attributes:
        id: the patch.
        cases: those of ``cases/`` that show what it ends.
        stacks: where they prove that it is needed; none where the matrix alone tries them.
        record: what the matrix has recorded of the installed versions, in words; nothing where it
            tries none of the cases.
    """

    id: str
    cases: tuple[str, ...]
    stacks: tuple[str, ...]
    record: str


def of(entry: Entry, known: Iterable[Case], installed: Mapping[str, str | None]) -> Elsewhere:
    """Look up where ``entry`` is proved.

    Args:
        entry: the patch.
        known: every case.
        installed: versions by distribution.
    """
    own = [case for case in known if case.patch == entry.id]
    proofs = [case for case in own if case.proof]
    stacks = dict.fromkeys(stack for case in proofs for stack in (*case.proof, *case.slow))
    proven = verified.proofs().get(entry.id, [])
    record = verified.sentence(entry, proven, installed, verified.revision(entry)) if proven else ""
    return Elsewhere(entry.id, tuple(case.id for case in proofs or own), tuple(stacks), record)
