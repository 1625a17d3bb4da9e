"""Makes several tiny checkpoints after one import: ``python -m tests.lab.checkpoints KIND=FOLDER ...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.lab.tiny import KINDS, build
from tests.lab.zoo import ZOO


def _add_vocabulary(path: Path) -> None:
    """Say ``vocab_size`` at the top too, where 4.52 to 4.54 read it and no longer write it."""
    import transformers

    config = json.loads(path.read_text())
    nested = config.get("text_config", {}).get("vocab_size")
    if nested and transformers.__version__.split(".")[:2] in (["4", "52"], ["4", "53"], ["4", "54"]):
        path.write_text(json.dumps({"vocab_size": nested, **config}, indent=1))


def main() -> None:
    for pair in sys.argv[1:]:
        kind, _, folder = pair.partition("=")
        made = ZOO[kind](Path(folder)) if kind in ZOO else build(KINDS[kind], Path(folder))
        _add_vocabulary(Path(folder) / "config.json")
        print(f"{kind}: {made:,} parameters in {folder}", flush=True)


if __name__ == "__main__":
    main()
