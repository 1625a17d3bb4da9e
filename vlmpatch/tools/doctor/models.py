"""What is said of a model that was named: what it is, its own patches, what was measured of its family."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vlmpatch.catalog.model import Catalog, State, Status
from vlmpatch.tools.doctor import measured, remote
from vlmpatch.tools.doctor.measured import Mixed, Trained
from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.model import Model, Tower
from vlmpatch.tools.view.language import Words

_ENGINES = {
    "ddp_unused": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp1": "FSDP1",
    "fsdp2": "FSDP2",
}
_STATES = {
    State.ARMED: "armed",
    State.APPLIED: "armed",
    State.NOT_NEEDED: "not needed",
    State.OFF: "off",
    State.FAILED: "failed",
    State.CONFLICT: "conflict",
}
_PAGES = {"minicpmv": "docs/minicpm-v.md", "minicpmo": "docs/minicpm-v.md"}
_UNKNOWN = "no model of this kind is in the records"
_SAME = 7  # letters of a kind that its modules share: minicpmv and minicpmo are one family


class Described(NamedTuple):
    """A model, its own patches by their ids, and a label and a text each for a person."""

    model: Model
    patches: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


def described(
    model: Model,
    catalog: Catalog,
    patches: Sequence[Status],
    findings: Sequence[Finding],
    installed: Mapping[str, str | None],
    say: Words,
) -> Described:
    """What there is to say of ``model``.

    Args:
        model: as its configuration has it.
        catalog: what is known.
        patches: what will become of each patch here.
        findings: those of doctor, for what was found in the model's own code.
        installed: versions, by distribution.
        say: the language.
    """
    version = installed.get("transformers")
    known = measured.trained(model.kind, version), measured.mixed(model.kind, version)
    own = tuple(own_patches(model, catalog))
    rows = (
        (say("Family"), _family(model, say)),
        (say("Towers"), say.mark("; ").join(_tower(tower, say) for tower in model.towers)),
        (say("Takes"), say.listed(say(each) for each in ("text", *model.takes))),
        (say("Its own code"), _code(model, findings, say)),
        (say("Its own patches"), _own(own, catalog, patches, say)),
        (say("Measured"), _measured(*known, say) or _PAGES.get(model.kind) or say(_UNKNOWN)),
    )
    return Described(model, own, rows)


def data(described: Described) -> dict[str, Any]:
    """The same for ``--json``."""
    model = described.model
    return {
        "kind": model.kind,
        "architecture": model.architecture,
        "towers": [tower._asdict() for tower in model.towers],
        "takes": list(model.takes),
        "experts": model.experts,
        "parameters": model.parameters,
        "own_code": list(model.code),
        "own_patches": list(described.patches),
    }


def own_patches(model: Model, catalog: Catalog) -> list[str]:
    """Ids of the patches whose target is this family's code."""
    return [
        entry.id
        for entry in catalog.entries.values()
        if any(_is_of(target, model.kind) for target in entry.targets)
        or entry.module.partition(".")[0][:_SAME] == model.kind[:_SAME]
    ]


def _is_of(target: str, kind: str) -> bool:
    if target.startswith("transformers_modules."):
        return target.rpartition("modeling_")[2][:_SAME] == kind[:_SAME]
    return f".models.{kind}." in target


def _family(model: Model, say: Words) -> str:
    made = model.kind + (say.bracketed(model.architecture) if model.architecture else "")
    parts = [printable(made)]
    if model.experts:
        parts.append(say("a mixture of experts"))
    if model.parameters:
        parts.append(say("{count} billion parameters", count=f"{model.parameters / 1e9:.2f}"))
    return say.mark(", ").join(parts)


def _tower(tower: Tower, say: Words) -> str:
    named = say(tower.name) + (say.bracketed(printable(tower.kind)) if tower.kind else "")
    layers = say("{count} layers", count=tower.layers) if tower.layers else ""
    width = say("{count} wide", count=tower.width) if tower.width else ""
    said = say.mark(", ").join(filter(None, [layers, width]))
    return f"{named} {said}".strip()


def _code(model: Model, findings: Sequence[Finding], say: Words) -> str:
    if not model.remote:
        return say("none: transformers has it")
    here = [os.path.basename(path) for path in remote.files(model.folder)]
    missing = [name for name in model.code if name not in here]
    told = sum(finding.code == "D08" for finding in findings)
    parts = []
    if here:
        found = say("{count} finding(s) above", count=told) if told else say("nothing known to fail")
        parts.append(say("read: {files}; {found}", files=say.listed(here), found=found))
    if missing:
        parts.append(say("not here, so not read: {files}", files=printable(", ".join(missing))))
    return say.mark("; ").join(parts)


def _own(ids: Sequence[str], catalog: Catalog, patches: Sequence[Status], say: Words) -> str:
    states = {status.id: say(_STATES[status.state]) for status in patches}
    if not ids:
        return say("none; what acts for every model is below")
    failures = {id_: say.listed(catalog.entries[id_].failures) for id_ in ids}
    told = {id_: say.bracketed(failures[id_] + say.mark(": ") + states.get(id_, "")) for id_ in ids}
    return say.listed(id_ + told[id_] for id_ in ids)


def _measured(run: Trained | None, mixed: Mixed | None, say: Words) -> str:
    parts = []
    if run and run.patched:
        parts.append(
            say(
                "LoRA under ZeRO-3 on {on}: {bare} without vlmpatch, {patched} with it",
                on=run.on,
                bare=_outcome(run.bare, say),
                patched=_outcome(run.patched, say),
            )
        )
    if mixed:
        right = say.listed(_ENGINES[engine] for engine, tunings in mixed.right.items() if tunings)
        sentence = "with vlmpatch, batches with and without images are right on {on}"
        parts.append(f"{say(sentence, on=mixed.on)}{say.mark(': ')}{right}")
        if other := [_ENGINES[engine] for engine, tunings in mixed.otherwise.items() if tunings]:
            parts.append(say("not under {engines}", engines=say.listed(other)))
    return say.mark("; ").join(parts)


def _outcome(word: str, say: Words) -> str:
    count, _, rest = word.partition(" ")
    if rest == "without a gradient":
        return say("{count} tensors without a gradient", count=count)
    return {"": say("not run"), measured.RIGHT: say("right")}.get(word, word)
