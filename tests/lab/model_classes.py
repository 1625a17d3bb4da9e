"""Every model class of transformers that supports checkpointing: does training compute what it evaluates?

    python -m tests.families tf523-ds0198 [--only Llama,Gemma3n] [--out FOLDER]

makes a small model of each class inside the stack and compares loss and gradients of training without
checkpointing, and with both variants of it, with evaluation mode, bare and with vlmpatch, by
``tests.lab.modes``. The result goes into ``data/model-classes.csv``, from which ``make generate`` writes a
table of what differs into ``docs/reference/families.md``. It takes half a second a class and side, of which
the newest transformers has 1600: ``--missing`` runs what is not on record, in the order of the alphabet, and
what a run that is cut off had in ``--out`` is put on record with ``--unrun``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.lab import envs, launch, pages, table
from tests.lab.made_small import unmade
from tests.lab.modes import CHANCE, MODES, OFF, lines_of

STORE = pages.ROOT / "data" / "model-classes.csv"
BEGIN = "<!-- written by tests.families -->"
SIDES = ("bare", "patched")
RUNS = tuple(f"{side} {mode}" for side in SIDES for mode in MODES)
COLUMNS = ("stack", "class", "family", *RUNS, "not made")
RIGHT = ("=", CHANCE)
Line = Mapping[str, str]
Found = dict[str, dict[str, dict[str, str]]]  # by stack and class
# What is known of what differs, by the folder in transformers: failures, or why it is none.
KNOWN = {
    **dict.fromkeys(("gemma3n", "gemma4", "gemma4_unified", "gemma4_unified_assistant"), "F52"),
    **dict.fromkeys(
        ("blt", "conditional_detr", "detr", "dinov2", "dinov2_with_registers", "qwen3_omni_moe"), "F22"
    ),
    **dict.fromkeys(("align", "altclip", "chinese_clip", "layoutlm", "llama4"), "F22"),
    **dict.fromkeys(("diffusion_gemma",), "F22"),  # the encoder's states are in a cache
    **dict.fromkeys(("maskformer",), "F22 F101"),  # its decoder, and its Swin
    **dict.fromkeys(("pi0",), "F100"),
    **dict.fromkeys(("omniasr", "omniasr_ctc"), "F5"),  # its first block gets the sound as it is
    **dict.fromkeys(
        (
            "mistral_large4",
            "muse_glimmer_assistant",
            "radio",
            "rf_detr",
            "speecht5",
            "splinter",
            "tipsv2",
            "wavlm",
            "whisper",
        ),
        "F22",
    ),
    **dict.fromkeys(("git",), "F20"),
    **dict.fromkeys(("lilt", "mlcd", "pvt_v2", "sew_d", "switch_transformers"), "F65"),
    **dict.fromkeys(("recurrent_gemma",), "F61 F67"),  # what is right lacks the gradients of F61, bare
    **dict.fromkeys(("imagegpt",), "F68"),
    **dict.fromkeys(("umt5",), "F62"),
    **dict.fromkeys(("autoformer",), "F65"),  # a layer of its decoder puts out a pair in a tuple
}
DESIGN = ("autoformer",)  # AutoCorrelation averages its lags over the batch in training
REFUSED = "is not compatible with gradient checkpointing"  # says transformers of a class that says it is
NO_FAILURE = ("refused", "design")
# Why what differs with vlmpatch too is left, by the folder in transformers.
LEFT = {
    "autoformer": "design",
    "diffusion_gemma": "beside",
    "switch_transformers": "beside",
    "imagegpt": "upstream",
    "maskformer": "upstream",
    "pi0": "loud",
}
WORDS: dict[str, dict[str, Any]] = {
    "en": {
        "refused": "says that it supports checkpointing, and is refused by transformers itself",
        "design": "its training is another function by design; checkpointing computes that same one",
        "": "**not looked into**",
        "beside": "left: an explicit True; the default learns",
        "upstream": "left: ended upstream",
        "loud": "left: an error before anything is trained",
        "count": "{stack}: {made} of {seen} classes tried could be made small; {differing} differ. "
        "Of the rest ",
        "part": "{count} are parts of classes that could be",
        "forwardless": "{count} have no forward",
        "package": "{count} need a package that the stack has not ({packages})",
        "looked at": "{count} cannot be for a reason below",
        "unseen": "{count} were not looked into",
        "and": (", ", "."),
        "why": "| not made | why |",
        "head": "| class | no checkpointing | non-reentrant | reentrant | with vlmpatch | |",
        "unrun": "not run",
    },
    "zh": {
        "refused": "声称支持检查点，而 transformers 自己拒绝",
        "design": "训练按设计就是另一个函数；开检查点与之一致",
        "": "**尚未调查**",
        "beside": "保留：显式设为 True；默认值可以正常学习",
        "upstream": "保留：上游已修复",
        "loud": "保留：训练开始前就会报错",
        "count": "{stack}：尝试的 {seen} 个类中有 {made} 个能做成小模型，其中 {differing} 个不一致。"
        "其余的类中，",
        "part": "{count} 个是能做成小模型的类的一部分",
        "forwardless": "{count} 个没有 forward",
        "package": "{count} 个需要环境中没有的软件包（{packages}）",
        "looked at": "{count} 个因下表所列的原因做不成",
        "unseen": "{count} 个尚未调查",
        "and": ("，", "。"),
        "why": "| 未做成的类 | 原因 |",
        "head": "| 类 | 不开检查点 | non-reentrant | reentrant | 使用 vlmpatch | |",
        "unrun": "未运行",
    },
}


def perform(
    stack_name: str, only: str, out: Path, *, patched: bool = False, known: Iterable[str] = ()
) -> Iterable[Line]:
    """Run the classes inside the stack that are neither ``known`` nor in ``out`` yet; a line of each."""
    stack = envs.read_stacks()[stack_name]
    envs.make(stack)
    out.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = ["python", "-W", "ignore", "-m", "tests.lab.modes", "--out", out / "lines"]
    (out / "known").write_text("\n".join(known))
    command += ["--only", only, "--known", out / "known", *(["--patched"] if patched else [])]
    finished = launch.run(stack, command, limit=7200)
    if finished.rc != 0:
        raise RuntimeError(str(finished))
    return lines_of(out / "lines")


def read(path: Path = STORE) -> Found:
    """What was run, by stack and class."""
    return table.nested(path, COLUMNS, "python -m tests.families STACK")


def save(found: Found, path: Path = STORE) -> None:
    table.write_nested(path, COLUMNS, found)


def differs(about: Mapping[str, str]) -> bool:
    """Whether a class that was run is not one function in all modes, bare or with vlmpatch."""
    return any(about[run] not in ("", *RIGHT) for run in RUNS)


def is_wrong(about: Mapping[str, str]) -> bool:
    """Whether something of it is wrong with vlmpatch."""
    return any(about[f"patched {mode}"] not in ("", *RIGHT) for mode in MODES)


def harmed(about: Mapping[str, str]) -> bool:
    """Whether vlmpatch made something wrong that was right.

    Where nothing is said transformers 4 takes the reentrant variant, and with vlmpatch the other one.
    """
    pairs = [(about[f"bare {mode}"], about[f"patched {mode}"]) for mode in MODES]
    pairs.append((about["bare reentrant"], about["patched nonreentrant"]))
    return any(bare in RIGHT and patched not in ("", *RIGHT) for bare, patched in pairs)


def shown(language: str) -> str:
    """The part of the page that is made of the record."""
    words, parts = WORDS[language], []
    for stack, kinds in sorted(read().items()):
        differing = {name: about for name, about in sorted(kinds.items()) if differs(about)}
        text = _counted(stack, kinds, len(differing), words)
        rows = [_row(name, about, words) for name, about in differing.items()]
        parts += [text, "", words["head"], "|---" * 6 + "|", *rows, "", *_reasons(kinds, language)]
    return "\n".join(parts).rstrip()


def _counted(stack: str, kinds: Mapping[str, Line], differing: int, words: Mapping[str, Any]) -> str:
    """How many classes could be made, and why the others could not."""
    left = {name: about["not made"] for name, about in kinds.items() if about["not made"]}
    why = Counter(unmade.why(name, reason) or "unseen" for name, reason in left.items())
    packages = ", ".join(sorted({unmade.package(reason) for reason in left.values()} - {""}))
    begun = words["count"].format(
        stack=stack, made=len(kinds) - len(left), seen=len(kinds), differing=differing
    )
    comma, stop = words["and"]
    kinds_of_reason = ("part", "forwardless", "package", "looked at", "unseen")
    said = [words[kind].format(count=why[kind], packages=packages) for kind in kinds_of_reason if why[kind]]
    return str(begun + comma.join(said) + stop)


def _reasons(kinds: Mapping[str, Line], language: str) -> list[str]:
    """The reasons that were looked at, each with the classes that it keeps from being made."""
    rows = []
    for reason in unmade.entries().values():
        names = [
            name for name in reason.classes if unmade.looked_at(name, kinds.get(name, {}).get("not made", ""))
        ]
        if names:
            rows.append(f"| {', '.join(names)} | {reason.zh if language == 'zh' else reason.en} |")
    return [WORDS[language]["why"], "|---|---|", *rows, ""] if rows else []


def known(about: Mapping[str, str]) -> str:
    """What is known of a class that differs: failures, or why it is none."""
    said = [about[run] for run in RUNS if about[run] not in ("", *RIGHT)]
    if all(REFUSED in each for each in said):
        return "refused"
    if about["family"] in DESIGN and all(each.endswith(OFF) for each in said):
        return "design"
    return KNOWN.get(about["family"], "")


def _row(name: str, about: Mapping[str, str], words: Mapping[str, Any]) -> str:
    numbers = ", ".join(f"[{number}](failures.md#{number.lower()})" for number in known(about).split())
    said = words.get(known(about), numbers)
    if about["family"] in LEFT and is_wrong(about) and known(about) not in NO_FAILURE:
        said += f", {words[LEFT[about['family']]]}"
    bare, patched = ([about[f"{side} {mode}"] for mode in MODES] for side in SIDES)
    wrong = [f"{mode}: {found}" for mode, found in zip(MODES, patched, strict=True) if found not in RIGHT]
    after = words["unrun"] if not any(patched) else "; ".join(wrong) or "="
    return f"| {name} | {' | '.join(bare)} | {after} | {said} |"


def has_run(about: Mapping[str, str], side: str, *, unmade: bool = False) -> bool:
    """Whether it is known of a class what one side makes of it; ``unmade`` are to be tried again."""
    return bool((about["not made"] and not unmade) or about[f"{side} {MODES[0]}"])


def merge(found: Found, stack: str, side: str, ran: Iterable[Line]) -> None:
    """Add what one side did to what is on file.

    What cannot be made bare is no class of the table; what only vlmpatch's side cannot make is a wrong one.
    """
    for line in ran:
        about = found.setdefault(stack, {}).setdefault(line["class"], dict.fromkeys(COLUMNS[2:], ""))
        reason = line.get("not made", "")
        said = {f"{side} {mode}": line.get(mode, "") for mode in MODES}
        if side == "patched" and reason and about[f"bare {MODES[0]}"]:
            said, reason = dict.fromkeys(said, f"`not made: {reason}`"), ""
        elif side == "patched" and about["not made"]:
            reason = about["not made"]
        about |= {"family": line["module"], "not made": reason, **said}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.families")
    parser.add_argument("stack", choices=envs.read_stacks())
    parser.add_argument("--only", default="", help="beginnings of class names, by commas")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--out", type=Path, help="keep what was run here, and do not run it again")
    parser.add_argument("--missing", action="store_true", help="only what is not on record")
    parser.add_argument("--unmade", action="store_true", help="the missing, and what could not be made")
    parser.add_argument("--unrun", action="store_true", help="take what --out has, run nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modes-") as temporary:
        for side in asked.sides.split(","):
            out = (asked.out or Path(temporary)) / side
            recorded, unmade = read().get(asked.stack, {}).items(), asked.unmade and side == "bare"
            known = [name for name, about in recorded if has_run(about, side, unmade=unmade)]
            ran = (
                lines_of(out / "lines")
                if asked.unrun
                else perform(
                    asked.stack,
                    asked.only,
                    out,
                    patched=side == "patched",
                    known=known if asked.missing or asked.unmade else (),
                )
            )
            found = read()  # only now: another run may have been put on record in the meantime
            merge(found, asked.stack, side, ran)
            save(found)
