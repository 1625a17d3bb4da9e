"""How often ``explain`` is right: ``python -m bench.explain FOLDER``.

FOLDER holds ``reports.jsonl`` and ``unrelated.jsonl``, one report a line with ``id``, ``error`` (the text),
``coverage_class`` (what it is) and ``explain_today``, and ``round2.jsonl``, whose reports have ``text``,
``expected`` (ids, ``silent``, or ``none`` for what was unknown when it was judged), ``cause`` and
``decidable``. ``fresh.jsonl``, if it is there, has ``id``, ``judged`` (ids, ``other`` or ``open``, as in
``data/explain-fresh.csv``) and ``text``. The texts are others' and stay outside the repository.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

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


# What was unknown when round2.jsonl was judged, by a word of the cause as judged then.
UNKNOWN_THEN = {
    "the recomputation routes another number of tokens": {"F45"},
    "outside its wrapped module": {"F39"},
    "with frozen and trained parameters in one unit": {"F38"},
    "naming a class that is not there": {"F40"},
    "a tensor shared by reentrant segments by keyword": {"F36", "F37"},
    "the same message in LLaVA's code with checkpointing": {"F36"},
    "whose post-backward hook runs after the root is idle": {"F41"},
    "a bucket is reused before its reduction is done": {"nan"},
    "NaN from the second step": {"nan"},
    "the same, FSDP2 / DCP": {"F42"},
    "buffers are made in engine.backward": {"F46"},
}


class Said(NamedTuple):
    """What a text is said to show: a failure of ours, another cause, or one that it may be."""

    ours: str
    other: str
    hint: bool


def answer(text: str) -> Said:
    """What ``text`` is said to show."""
    known = failures.read(default_path())
    found = diagnose(io.BytesIO(text.encode()), known)
    if found.hit is None:
        return Said("", found.perhaps[0].id if found.perhaps else "", False)
    id_, foreign = found.hit.failure.id, found.hit.failure.foreign
    return Said("" if foreign else id_, id_ if foreign else "", found.hit.symptom.kind == "hint")


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


def second_verdict(report: dict[str, Any], said: Said) -> str:
    """The same for a report of ``round2.jsonl``; ``to judge`` where nobody has said yet what is right."""
    expected = set(report["expected"])
    if said.ours in expected or (said.hint and f"{said.ours}hint" in expected):
        return "right"
    if "silent" in expected:
        return "wrong" if said.ours else "right"
    if not report["decidable"]:
        return "wrong" if said.ours else "no text"
    if "none" not in expected:
        return "wrong" if said.ours else "missed"
    fits = next((ids for word, ids in UNKNOWN_THEN.items() if word in report["cause"]), None)
    if fits is None:
        return "to judge"
    return "right" if {said.ours, said.other} & fits else "wrong" if said.ours else "missed"


def fresh_verdict(judged: set[str], text: str) -> str:
    """What ``data/explain-fresh.csv`` calls the answer to ``text``."""
    found = diagnose(io.BytesIO(text.encode()), failures.read(default_path()))
    named = {failure.id for failure in found.perhaps}
    other = found.hit.failure if found.hit else found.ground
    ours = found.hit is not None and not found.hit.failure.foreign
    if judged & {"other", "open"}:
        silent = "perhaps" if named else "open" if "open" in judged else "silent"
        return "claimed" if ours else silent
    if other is not None and other.id in judged:
        return "right"
    return "perhaps" if named & judged else "wrong" if ours else "missed"


def read(path: Path) -> list[dict[str, Any]]:
    """The reports in ``path``."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main(folder: Path) -> int:
    """Print the counts and what is not right; returns 1 when something unrelated was claimed."""
    wrong = first_round(folder)
    if (folder / "round2.jsonl").exists():
        second_round(read(folder / "round2.jsonl"))
    if (folder / "fresh.jsonl").exists():
        counts: Counter[str] = Counter()
        for report in read(folder / "fresh.jsonl"):
            judged = set(report["judged"].split())
            found = fresh_verdict(judged, report["text"])
            counts[f"{found} of {'deciding' if not judged & {'other', 'open'} else min(judged)}"] += 1
            if found in ("missed", "wrong", "claimed"):
                print(f"{found}: {report['id']} is {report['judged']}")
        print("fresh:", ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    return wrong


def second_round(reports: list[dict[str, Any]]) -> None:
    """Print the counts of ``round2.jsonl``, and each report that is not right."""
    counts: Counter[str] = Counter()
    for report in reports:
        said = answer(report["text"])
        found = second_verdict(report, said)
        counts[found] += 1
        if found not in ("right", "no text"):
            told = said.ours or f"({said.other or '-'})"
            print(f"{found}: {report['id']} {report['expected']}, said {told}: {report['cause']}")
    decided = sum(counts.values()) - counts["no text"]
    print(
        f"second round: {counts['right']} of {decided} right; {counts['no text']} have no text that says it"
    )


def first_round(folder: Path) -> int:
    """Print the counts of the first round; returns 1 when something unrelated was claimed."""
    counts: Counter[str] = Counter()
    for report in read(folder / "reports.jsonl"):
        said = answer(report["error"]).ours
        found = verdict(report, said)
        counts[found] += 1
        if found in ("missed", "wrong"):
            print(f"{found}: {report['id']} is {report.get('coverage_class')}, said {said or '-'}")
    claims = 0
    for report in read(folder / "unrelated.jsonl"):
        if said := answer(report["error"]).ours:
            claims += 1
            print(f"claimed: {report['id']}, said {said}")
    told = counts["right"] + counts["missed"] + counts["wrong"]
    print(f"{counts['right']} of {told} right; {counts['no text']} have no text that says it")
    print(f"{claims} claims on unrelated logs")
    return 1 if claims else 0


def asked() -> Path:
    """The folder that the command names; exits where it holds no reports."""
    parser = argparse.ArgumentParser(prog="python -m bench.explain")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with reports.jsonl and unrelated.jsonl")
    folder: Path = parser.parse_args().folder
    for name in ("reports.jsonl", "unrelated.jsonl"):
        if not (folder / name).is_file():
            parser.error(f"{folder} has no {name}")
    return folder


if __name__ == "__main__":
    sys.exit(main(asked()))
