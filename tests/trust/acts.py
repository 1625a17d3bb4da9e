"""Does a patch act? What it wrapped is called, and its own code must be what answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

JOURNAL = Path(__file__).resolve().parents[2] / "vlmpatch" / "journal"
WRAPPERS = (str(JOURNAL / "dispatching.py"), str(JOURNAL / "wrappers.py"))


class Reached(BaseException):
    """A patch file's code runs: enough is known, and the host's function must not be called with rubbish."""


def silent(engine: Any, id_: str) -> list[str]:
    """What ``id_`` is said to have changed and does not act."""
    from vlmpatch.journal.changes import Hooked, SetValue, Wrap

    if not engine._handles[id_].active:
        return [f"{id_}: its handle is dead"]
    found = []
    for record in [record for record in engine.journal._records if record.patch == id_]:
        change = record.change
        if not change.alive:
            continue
        if isinstance(change, Wrap):
            location = change._wrappers.value.location
            if not (change._wrappers.acts(change._key) and reached(location.owner(), location.name)):
                found.append(f"{id_}: {record.what}, and it is not called")
        elif isinstance(change, SetValue):
            value = change.value
            if not (value.location.holds(value.value) or engine.journal._overrides.covered(value)):
                found.append(f"{id_}: {record.what}, and it does not lie there")
        elif isinstance(change, Hooked) and not ((hook := change._hook()) and hook.on):
            found.append(f"{id_}: {record.what}, and it is off")
    return found


def reached(owner: Any, name: str) -> bool:
    """Whether calling ``owner.name`` reaches the wrapper of a patch, with however many arguments it takes."""
    return any(_reached(getattr(owner, name), count) for count in range(7))


def _reached(function: Any, count: int) -> bool:
    before = sys.getprofile()
    sys.setprofile(_watch)
    try:
        function(*[MagicMock() for _ in range(count)])
    except Reached:
        return True
    except Exception:
        return False
    finally:
        sys.setprofile(before)
    return False


def _watch(frame: Any, event: str, _argument: object) -> None:
    caller = frame.f_back.f_code if event == "call" and frame.f_back is not None else None
    dispatching = (
        caller is not None and caller.co_filename in WRAPPERS and caller.co_name in ("dispatch", "link")
    )
    if dispatching and frame.f_code.co_filename not in WRAPPERS:
        raise Reached
