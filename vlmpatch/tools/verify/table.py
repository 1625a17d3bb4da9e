"""What ``verify`` says of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vlmpatch.gate import versions
from vlmpatch.tools.verify.elsewhere import Elsewhere
from vlmpatch.tools.verify.ending import Ending, Verdict
from vlmpatch.tools.verify.room import MIB, NoRoom
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page

SCHEMA = 1  # of --json


class Outcome(NamedTuple):
    """All that ``verify`` found out; every view is made from it alone.

    Attributes:
        device: ``cpu`` or ``cuda``.
        seconds: that it took.
        verdicts: of the cases that ran.
        elsewhere: where the patches are proved that are needed here and have no run.
        spare: how many patches are not needed here.
    """

    device: str
    seconds: float
    verdicts: Sequence[Verdict]
    elsewhere: Sequence[Elsewhere]
    spare: int

    @property
    def tried(self) -> list[Verdict]:
        """The verdicts that say something of a patch."""
        return [verdict for verdict in self.verdicts if verdict.tried]


def page(outcome: Outcome, words: Words) -> Page:
    """What was tried, what was not and why, and the sum of it."""
    made = Page()
    ranks = (
        words("two ranks over gloo on the CPU, float32")
        if outcome.device == "cpu"
        else words("two GPUs, NCCL, bfloat16")
    )
    made.add(words.listed(map(" ".join, installed().items())) + words.mark("; ") + ranks, style="dim")
    for verdict in outcome.verdicts:
        made.add()
        _add(made, verdict, words)
    _proofs(made, outcome.elsewhere, words)
    made.add()
    good = sum(verdict.sound for verdict in outcome.tried)
    sentence = (
        "{good} of {all} runs are as they should be, in {seconds} s; {spare} patches are not needed here."
    )
    counts = {"all": len(outcome.tried), "seconds": round(outcome.seconds), "spare": outcome.spare}
    made.add(words(sentence, good=good, **counts), style="good" if good == len(outcome.tried) else "bad")
    return made


def _add(made: Page, verdict: Verdict, words: Words) -> None:
    mark, style = {"sound": ("ok", "good"), "not": ("NO", "bad"), "untried": ("--", "warn")}[_word(verdict)]
    made.add(verdict.case.patch, style=style, label=mark)
    made.add(words.pick((verdict.case.en, verdict.case.zh)), label=words("run"))
    made.add(said(verdict.bare, words), label=words("without"))
    made.add(said(verdict.patched, words) + _remark(verdict, words), label=words("with"))
    for number, line in enumerate(_costs(verdict, words)):
        made.add(line, label=words("cost") if number == 0 else " ")


def _word(verdict: Verdict) -> str:
    return "untried" if not verdict.tried else "sound" if verdict.sound else "not"


def _proofs(made: Page, elsewhere: Sequence[Elsewhere], words: Words) -> None:
    if not elsewhere:
        return
    made.add()
    made.add(
        words(
            "Needed here, and shown by no tiny run: it takes a framework, a script or another model. The "
            "case that shows each, and where it was proved (`python -m tests.e2e.alone ID` in a checkout):"
        )
    )
    for each in elsewhere:
        stacks = words(" on {stacks}", stacks=words.listed(each.stacks)) if each.stacks else ""
        record = f"{words.mark('; ')}{words.told(each.record)}" if each.record else ""
        made.add(f"  {each.id}{words.mark(': ')}{words.listed(each.cases)}{stacks}{record}", "dim")


def data(outcome: Outcome) -> dict[str, Any]:
    """The same for ``--json``."""
    return {
        "schema": SCHEMA,
        "installed": installed(),
        "device": outcome.device,
        "seconds": round(outcome.seconds, 1),
        "runs": [
            {
                "patch": verdict.case.patch,
                "case": verdict.case.id,
                "verdict": _word(verdict),
                "without": _ending(verdict.bare),
                "with": _ending(verdict.patched),
            }
            for verdict in outcome.verdicts
        ],
        "elsewhere": [each._asdict() for each in outcome.elsewhere],
        "spare": outcome.spare,
    }


def _ending(found: Ending) -> dict[str, Any]:
    return {"outcome": found.outcome, "detail": found.detail, "cost": dict(found.cost)}


def full(found: NoRoom, words: Words) -> str:
    """What is full, and how much it takes."""
    return words(
        "{place} is full: {free} MiB are left, and these runs write about {needed} MiB. No patch was "
        "tested. Make room, or name another folder: TMPDIR=FOLDER python -m vlmpatch verify",
        place=found.place,
        free=found.free // MIB,
        needed=found.needed // MIB,
    )


def said(found: Ending, words: Words) -> str:
    """An outcome in words."""
    sentences = {
        "right": words("gradients are right ({detail} off)", detail=found.detail),
        "error": words("ends with {detail}", detail=found.detail.removeprefix("ended with ")),
        "missing": words("{detail} trainable tensors get no gradient", detail=found.detail),
        "difference": words("gradients are wrong, {detail} off", detail=found.detail),
        "ranks": words("gradients differ between the ranks, by {detail}", detail=found.detail),
        "none": words("could not be run: {detail}", detail=found.detail),
    }
    return sentences[found.outcome]


def _remark(verdict: Verdict, words: Words) -> str:
    if verdict.case.warns and verdict.sound:
        return words.mark("; ") + words("what you said could only fail: it was overruled, with a warning")
    if not verdict.tried:
        return words.mark("; ") + words("this machine cannot run it, with vlmpatch or without")
    if verdict.bare.outcome == "right" and verdict.sound:
        return words.mark("; ") + words("nothing to fix showed in this run")
    return ""


def _costs(verdict: Verdict, words: Words) -> list[str]:
    lines = []
    for name, found in (("without", verdict.bare), ("with", verdict.patched)):
        cost, shown = found.cost, []
        if "elements" in cost:
            times = f"{cost['elements'] / cost['total']:.1f}"
            sentence = "in a step ZeRO-3 gathers {times} times the model's parameters, by {calls} call(s)"
            shown.append(words(sentence, times=times, calls=cost["calls"]))
        if "peak_bytes" in cost:
            shown.append(f"{cost['seconds'] * 1000:.0f} ms, {cost['peak_bytes'] / 2**20:.0f} MiB")
        if shown:
            lines.append(f"{words(name)}{words.mark(': ')}{words.mark('; ').join(shown)}")
    return lines


def installed() -> dict[str, str]:
    """Versions of what the runs are made of."""
    names = ("torch", "transformers", "deepspeed", "peft")
    found = ((name, versions.installed(name, name).version) for name in names)
    return {name: version for name, version in found if version}
