"""``python -m vlmpatch``; see ``vlmpatch.tools.cli``."""

from __future__ import annotations

import sys

from vlmpatch.tools.cli import entry_point

if __name__ == "__main__":
    sys.exit(entry_point())
