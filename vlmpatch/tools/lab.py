"""What the tools use of the lab, wherever that lies: beside vlmpatch in a checkout, inside it in a wheel.

The lab is not a module of vlmpatch: a bare run of ``verify`` imports it, and must not import vlmpatch, which
importing a module below vlmpatch would do.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vlmpatch.catalog.location import PACKAGE

_IN_A_WHEEL = Path(PACKAGE, "_lab")
FOLDER = _IN_A_WHEEL if _IN_A_WHEEL.is_dir() else Path(PACKAGE).parent  # what ``vlmpatch_lab`` lies in
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

from vlmpatch_lab.cell import WORLD, Cell, write_cells  # noqa: E402  (needs sys.path as set above)
from vlmpatch_lab.patience import within  # noqa: E402

__all__ = ["FOLDER", "WORLD", "Cell", "within", "write_cells"]
