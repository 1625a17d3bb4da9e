"""What was understood of a launch: said beside the findings, so that none of them is no promise unseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.launch_config import LaunchConfig, Option
from vlmpatch.tools.view.language import Words

UNREAD = "L00"


class Understood(NamedTuple):
    """One training, as it was read; None and the empty text stand for what the launch does not say.

    Attributes:
        where: it stands.
        launcher: what starts its processes.
        program: the Python file.
        processes: how many.
        engine: ``DeepSpeed``, ``FSDP``, ``DDP``, or nothing for one process.
        stage: of ZeRO.
        tuning: ``lora``, where it is asked for.
        checkpointing: whether it is switched on.
        reentrant: what is said of ``use_reentrant``.
        model: its name.
        notes: codes of what is worth knowing, or goes wrong only where the finding says.
        wrong: codes of what is known to go wrong with it, bare.
        ended: the patches that end it here, by code.
        left: codes of what goes wrong all the same.
    """

    where: str
    launcher: str
    program: str
    processes: int | None
    engine: str
    stage: int | None
    tuning: str
    checkpointing: bool | None
    reentrant: bool | None
    model: str
    notes: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    ended: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    left: tuple[str, ...] = ()


def of(launch: LaunchConfig, findings: Sequence[Finding] = ()) -> Understood:
    """What was understood of ``launch``, and what its ``findings`` come to."""
    given, model = launch.checkpointing, launch.model
    reentrant = True if launch.reentrant else False if launch.nonreentrant else None
    engines = {"DeepSpeed": launch.deepspeed, "FSDP": launch.fsdp, "DDP": launch.distributed}
    return Understood(
        where=launch.where,
        launcher=_shown(launch.launcher),
        program=_shown(launch.program),
        processes=launch.processes,
        engine=next((name for name, used in engines.items() if used), ""),
        stage=(launch.stage or None) if launch.deepspeed else None,
        tuning="lora" if launch.lora else "",
        checkpointing=_switch(given) if given else launch.checkpoints or None,
        reentrant=reentrant,
        model=_shown(model.value) if model else "",
        **_verdict(findings),
    )


def _verdict(findings: Sequence[Finding]) -> dict[str, Any]:
    left = tuple(dict.fromkeys(each.code for each in findings if each.severity == "warning"))
    left = tuple(code for code in left if code != UNREAD)
    ended = {each.code: each.patches for each in findings if each.patches and each.code not in left}
    notes = sorted({each.code for each in findings if each.severity == "note" and not each.patches})
    return {"notes": tuple(notes), "wrong": tuple(sorted({*left, *ended})), "ended": ended, "left": left}


def _switch(given: Option) -> bool | None:
    return True if given.on else False if given.off else None


def _shown(text: str) -> str:
    return printable(text, 120)


def rows(seen: Understood, say: Words) -> list[tuple[str, str]]:
    """A label and what stands behind it, for a person."""
    unsaid = say("not said")
    stage = f"ZeRO-{seen.stage}" if seen.stage else say("ZeRO stage not said")
    engine = f"{seen.engine} {stage}" if seen.engine == "DeepSpeed" else seen.engine
    if engine == "DDP":
        engine = say("DDP, as nothing else is said")
    alone = say("one process") if seen.processes == 1 else unsaid
    reentrant = {None: "use_reentrant " + unsaid, True: "use_reentrant=True", False: "use_reentrant=False"}
    switched = {None: unsaid, True: say("on") + say.mark(", ") + reentrant[seen.reentrant], False: say("off")}
    return [
        (say("Launcher"), " ".join(filter(None, [seen.launcher, seen.program]))),
        (say("Processes"), unsaid if seen.processes is None else str(seen.processes)),
        (say("Engine"), engine or alone),
        (say("Tuning"), "LoRA" if seen.tuning else say("no LoRA asked for")),
        (say("Checkpointing"), switched[seen.checkpointing]),
        (say("Model"), seen.model or unsaid),
        *_judged(seen, say),
    ]


def _judged(seen: Understood, say: Words) -> list[tuple[str, str]]:
    """What goes wrong without vlmpatch, what of it is ended here, what is left, and what may go wrong."""
    notes = [(say("Notes"), say.listed(seen.notes))] if seen.notes else []
    if not seen.wrong:
        return [(say("Goes wrong"), say("nothing known for certain" if notes else "nothing known")), *notes]
    ended = say.mark("; ").join(
        code + say.mark(": ") + say.listed(patches[:3]) for code, patches in seen.ended.items()
    )
    judged = [(say("Goes wrong"), say.listed(seen.wrong))]
    if ended:
        judged += [
            (say("Fixed by"), ended),
            (say("Left"), say.listed(seen.left) or say("nothing known")),
        ]
    return judged + notes
