"""How often ``explain`` is right: ``python -m bench.explain FOLDER``.

FOLDER holds ``reports.jsonl`` and ``unrelated.jsonl``, one report a line with ``id``, ``error`` (the text),
``coverage_class`` (what it is) and ``explain_today``. The texts are others' and stay outside the repository.
"""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from vlmpatch.catalog.location import default_path
from vlmpatch.tools.explain import failures
from vlmpatch.tools.explain.diagnose import diagnose

MIXED = {"F11", "F16", "F19"}
REENTRANT = {"F1", "F2", "F3"}
CLASSES = {
    "DDPUNUSED": MIXED,
    "F11": MIXED,
    "F16": MIXED,
    "KVCACHE": {"F20"},
    "Z3INIT": {"F23"},
    "Z3LOAD": {"F24"},
    "Z3LOAD49": {"F24"},
    "Z3SAVE": {"F25"},
    "Z3USE": {"F26"},
    "MOE": {"F27"},
    "SCRIPTDRIFT": {"F28", "D"},
    "D-zip": {"D"},
    "GENCKPT": {"F30"},
    "KEYRENAME": {"F31"},
    "LEAF": {"F13"},
    "LFREENTRANT": REENTRANT,
    "OLDGCFORMAT": REENTRANT,
    "F5-like": {"F5"},
    "PEFTDEEPCOPY": {"PEFT"},
    "GALOSS": {"F15"},
}


def answer(text: str) -> str:
    """The id of the failure that ``text`` is said to show, or nothing."""
    known = failures.read(default_path())
    hit = diagnose(io.BytesIO(text.encode()), known).hit
    return hit.failure.id if hit and not hit.failure.foreign else ""


def verdict(report: dict[str, Any], said: str) -> str:
    """``right``, ``missed``, ``wrong``, or ``no text`` where nobody could tell from what was quoted."""
    kind = report.get("coverage_class", "-")
    fits = CLASSES.get(kind, {kind})
    if said and said in fits:
        return "right"
    if not report["error"] or report["explain_today"] == "silent_no_text":
        return "no text"
    if report["explain_today"] == "rightly_silent" or (kind == "-" and report["explain_today"] != "right"):
        return "wrong" if said else "right"
    if kind == "-":
        return "right" if said else "missed"
    return "wrong" if said else "missed"


def main(folder: Path) -> int:
    """Print the counts and what is not right; returns 1 when something unrelated was claimed."""
    counts: Counter[str] = Counter()
    for line in (folder / "reports.jsonl").read_text().splitlines():
        report = json.loads(line)
        said = answer(report["error"])
        found = verdict(report, said)
        counts[found] += 1
        if found in ("missed", "wrong"):
            print(f"{found}: {report['id']} is {report.get('coverage_class')}, said {said or '-'}")
    claims = 0
    for line in (folder / "unrelated.jsonl").read_text().splitlines():
        report = json.loads(line)
        if said := answer(report["error"]):
            claims += 1
            print(f"claimed: {report['id']}, said {said}")
    told = counts["right"] + counts["missed"] + counts["wrong"]
    print(f"{counts['right']} of {told} right; {counts['no text']} have no text that says it")
    print(f"{claims} claims on unrelated logs")
    return 1 if claims else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
