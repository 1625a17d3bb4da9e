"""What became of the programs: ``data/shipped.csv``, and docs/reference/programs.md with its Chinese twin."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.lab import envs, grid, pages, table
from tests.matrix import store
from tests.shipped import programs
from tests.shipped.programs import ALIKE, ENGINES, FSDP, Ended, Program

STORE = pages.ROOT / "data" / "shipped.csv"
AGAIN = "VLMPATCH_SOURCES=CLONES python -m tests.shipped"
SHOWN = ("torch", "transformers", "deepspeed", "trl")  # of what a stack pins
WARNED = re.compile(r"vlmpatch \[([a-z0-9-]+)\]")
ERROR = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception): .*)")
PEER = re.compile(r"\[\S*pair\.cc:\d+\]")  # gloo's: the other rank was ended, which had waited too long
PLACE = re.compile(r"(/[\w.+-]+){2,}/")
LONGEST = 110  # characters of a message
RIGHT_BARE = ("=", "harmed")  # words of what is right without vlmpatch
JUDGED = ("engines", "fails", "says", "alike")  # of a program, what is said of it and not to it

WORDS = {
    "en": {
        "title": "# Training programs that projects ship",
        "intro": (
            "{count} training programs of {repositories} public repositories, unmodified but for what "
            "needs a GPU or reads videos: tiny models with the real special tokens, rows with an image "
            "beside rows without one where a program takes such, two ranks, three steps. Right is: norms of "
            "gradients and of weights, step for step, as under plain data parallel without checkpointing, "
            "to {alike}. "
            "`=`: right without vlmpatch and with it. `fixed`: ends or trains otherwise without it, right "
            "with it. `ends`: in both. An empty cell was not run, `tests/shipped/programs.toml` says why."
        ),
        "head": ("program", "on", *ENGINES, *FSDP, "without vlmpatch", "apart"),
        "otherwise": "trains, {} apart",
        "apart": "*apart*: the largest difference with vlmpatch, relative to the size. Run them again:",
        "warnings": "## What vlmpatch said meanwhile",
        "none": "No warning of vlmpatch was printed in any of these runs.",
        "warned": ("warning", "in", "judged"),
        "left": "## Not run here",
        "why": ("repository", "why"),
    },
    "zh": {
        "title": "# 各项目自带的训练程序",
        "intro": (
            "{repositories} 个公开仓库的 {count} 个训练程序，除需要 GPU 或读取视频的部分外未作修改："
            "带有真实特殊 token 的微型模型，有图像的样本与无图像的样本混合（程序支持时），两个 rank，三步。"
            "正确是指：逐步的梯度范数与权重范数与不用检查点的普通数据并行相同，误差不超过 {alike}。"
            "`=`：不用与用 vlmpatch 都正确。`fixed`：不用时报错或训练错误，用后正确。`ends`：两者都报错。"
            "空格未运行，原因见 `tests/shipped/programs.toml`。"
        ),
        "head": ("程序", "环境", *ENGINES, *FSDP, "不用 vlmpatch 时", "相差"),
        "otherwise": "能训练，相差 {}",
        "apart": "*相差*：使用 vlmpatch 时相对于其大小的最大差异。重新运行：",
        "warnings": "## 其间 vlmpatch 说了什么",
        "none": "这些运行中 vlmpatch 没有打印任何警告。",
        "warned": ("警告", "出现于", "判断"),
        "left": "## 未在此运行",
        "why": ("仓库", "原因"),
    },
}


class Line(NamedTuple):
    """A program under an engine: what vlmpatch makes of it, and how each run ended."""

    program: str
    engine: str
    stack: str
    commit: str
    word: str
    bare: str  # how far it is from the reference, or how it ended
    patched: str
    warnings: str  # ids of patches that warned, in the run with vlmpatch
    told: str  # of what the run without vlmpatch depends on, as it was
    key: str  # of what the run with vlmpatch depends on


class Bare(NamedTuple):
    """How a program ended under an engine without vlmpatch."""

    said: str  # how far it is from the reference, or how it ended
    right: bool
    ended: bool  # before it had trained


def read() -> list[Line]:
    """Every line of the record."""
    return [Line(**line) for _, line in table.read(STORE, Line._fields, AGAIN)]


def keep(lines: Iterable[Line]) -> None:
    """Put on file what was run; the rest stays, but for what is no program any more."""
    known, _ = programs.read()
    with envs.locked(envs.cache_root() / "shipped.lock"):
        found = {(line.program, line.engine): line for line in (read() if STORE.exists() else ())}
        found |= {(line.program, line.engine): line for line in lines}
        kept = [line for line in found.values() if line.engine in _engines(known, line.program)]
        table.write(STORE, Line._fields, sorted(kept))


def _engines(known: Mapping[str, Program], id_: str) -> tuple[str, ...]:
    return known[id_].engines if id_ in known else ()


def told(program: Program) -> str:
    """Of the program as it is told to run, and of its stack and its checkpoints."""
    words = {name: value for name, value in dataclasses.asdict(program).items() if name not in JUDGED}
    stack = envs.read_stacks()[program.stack]
    pins = (stack.torch, sorted(stack.packages), sorted(stack.no_deps))
    return _digest(words, pins, programs.recipe(programs.makers(program)))


def key(program: Program) -> str:
    """Of the same, and of all patches in reach, those of files beside it included."""
    return _digest(told(program), store.patches(envs.read_stacks()[program.stack], script=True))


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def current() -> set[tuple[str, str]]:
    """Programs and engines that are on file as they, and the patches, are now."""
    known, _ = programs.read()
    return {(line.program, line.engine) for line in read() if line.key == key(known[line.program])}


def bare_on_file() -> dict[tuple[str, str], Bare]:
    """What is on file of programs as they are now without vlmpatch, whatever became of patches."""
    known, _ = programs.read()
    return {
        (line.program, line.engine): Bare(line.bare, line.word in RIGHT_BARE, not _is_number(line.bare))
        for line in read()
        if line.told == told(known[line.program])
    }


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def bare_of(program: Program, right: Ended, run: Ended) -> Bare:
    """What the run without vlmpatch says, beside the reference."""
    return Bare(*_said(program, right, run), not run.right)


def line_of(program: Program, engine: str, right: Ended, bare: Bare, patched: Ended, key: str) -> Line:
    """What the run without vlmpatch, the run with it and the reference say of it."""
    said, fine = _said(program, right, patched)
    word = grid.word(bare.right, fine, ended=bare.ended, ends=not patched.right)
    where = program.id, engine, program.stack, program.commit[:12]
    return Line(*where, word, bare.said, said, " ".join(warned(patched)), told(program), key)


def _said(program: Program, right: Ended, run: Ended) -> tuple[str, bool]:
    """How far a run is from the reference, or how it ended; and whether that is right."""
    apart = distance(run, right)
    return (ending(run, right), False) if apart is None else (_short(apart), apart <= program.alike)


def distance(run: Ended, right: Ended) -> float | None:
    """How far ``run`` is from ``right``, where both got to their end."""
    if not (run.right and right.right):
        return None
    assert run.result
    assert right.result
    return programs.difference(run.result, right.result)


def ending(run: Ended, right: Ended) -> str:
    """How a run ended, in a line without a place of this machine; ``right`` went on after what it printed."""
    caught = set(ERROR.findall(right.output))
    found = [error for error in ERROR.findall(run.output) if not PEER.search(error) and error not in caught]
    if not found:
        return "hangs" if run.rc else "does not train"
    return PLACE.sub("", found[0]).partition(". ")[0].strip()[:LONGEST].strip()


def warned(run: Ended) -> tuple[str, ...]:
    """The patches that warned, once each."""
    return tuple(dict.fromkeys(WARNED.findall(run.output)))


def page(language: str) -> str:
    """The page in one language."""
    words, lines = WORDS[language], read()
    known, left = programs.read()
    known = {line.program: known[line.program] for line in lines}
    intro = str(words["intro"]).format(
        count=len(known),
        repositories=len({each.repository for each in known.values()}),
        alike=f"{ALIKE:g}",
    )
    told = [
        _row(program, [line for line in lines if line.program == id_], str(words["otherwise"]))
        for id_, program in known.items()
    ]
    why = [(each.repository, each.why if language == "en" else each.why_zh or each.why) for each in left]
    parts = [
        str(words["title"]),
        pages.in_other_language(language, "programs"),
        intro,
        pages.table(words["head"], told),
        str(words["apart"]),
        f"```bash\nmake sources\n{AGAIN.replace('CLONES', 'build/sources')}\n```",
        str(words["warnings"]),
        _warnings(lines, language),
        str(words["left"]),
        pages.table(words["why"], why),
    ]
    return "\n\n".join(parts) + "\n"


def _row(program: Program, lines: list[Line], otherwise: str) -> tuple[str, ...]:
    found = {line.engine: line for line in lines}
    url = f"https://github.com/{program.repository}/blob/{program.commit}/{program.script}"
    name = program.script.rpartition("/")[2]
    place = f"`{program.id}`: {program.repository} [{name}]({url}) at `{program.commit[:9]}`"
    endings = dict.fromkeys(
        otherwise.format(line.bare) if _is_number(line.bare) else f"`{line.bare}`"
        for line in lines
        if line.word in ("fixed", "ends") and line.bare
    )
    apart = [float(line.patched) for line in lines if line.word in ("=", "fixed")]
    return (
        place,
        _versions(program.stack),
        *(found[engine].word if engine in found else "" for engine in (*ENGINES, *FSDP)),
        "<br>".join(endings),
        _short(max(apart)) if apart else "",
    )


def _short(number: float) -> str:
    return f"{number:.0e}" if number else "0"


def _versions(stack: str) -> str:
    made: Any = envs.read_stacks()[stack]
    pins = dict(pin.split("==") for pin in (made.torch, *made.packages) if "==" in pin)
    return ", ".join(f"{name} {pins[name]}" for name in SHOWN if name in pins)


def _warnings(lines: Iterable[Line], language: str) -> str:
    words, judged = WORDS[language], programs.judged(language)
    found: dict[str, list[str]] = {}
    for line in lines:
        for id_ in line.warnings.split():
            found.setdefault(id_, []).append(f"{line.program} {line.engine}")
    if not found:
        return str(words["none"])
    rows = [(f"`{id_}`", ", ".join(where), judged.get(id_, "")) for id_, where in sorted(found.items())]
    return pages.table(words["warned"], rows)
