"""DeepSpeed's CPU collectives leave their shared memory behind: 69 MB a rank, until the machine is full.

The compiled extension creates ``deepspeed_allreduce_buffer_<user>_<address>_<port>_<rank>`` and never
unlinks it. A hundred short runs take 14 GB of memory that no process owns.
"""

from __future__ import annotations

import time
from pathlib import Path

FOLDER = Path("/dev/shm")
PATTERN = "deepspeed_allreduce_buffer_*"
SETTLED = 60.0  # seconds; a younger buffer may not have been mapped yet by the rank it is for


def forget(port: int) -> None:
    """Unlink the buffers of the run that met on ``port`` and is over."""
    for path in FOLDER.glob(f"{PATTERN}_{port}_*"):
        path.unlink(missing_ok=True)


def sweep() -> None:
    """Unlink every buffer that no living process has mapped, whichever run left it."""
    buffers = {path.name: path for path in FOLDER.glob(PATTERN) if _age(path) > SETTLED}
    if not buffers:
        return
    mapped = _mapped()
    for name, path in buffers.items():
        if name not in mapped:
            path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _mapped() -> str:
    lines = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines.append(maps.read_text())
        except OSError:  # the process has ended, or is not ours
            continue
    return "".join(lines)
