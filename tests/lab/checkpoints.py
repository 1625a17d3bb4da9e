"""Makes several tiny checkpoints after one import: ``python -m tests.lab.checkpoints FAMILY=FOLDER ...``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import families
from vlmpatch_lab.models import add_vocabulary


def main() -> None:
    import torch

    for pair in sys.argv[1:]:
        kind, _, folder = pair.partition("=")
        torch.manual_seed(0)  # whatever else is made in this process
        made = families.make(kind, Path(folder))
        add_vocabulary(Path(folder) / "config.json")
        print(f"{kind}: {made:,} parameters in {folder}", flush=True)


if __name__ == "__main__":
    main()
