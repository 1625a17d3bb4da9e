"""What the matrix found, as a page and a record: ``compatibility.md`` and ``data/verified.csv``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.lab import envs, pages, table
from tests.lab.envs import Stack
from tests.matrix import judge, rows, store
from tests.matrix.judge import Outcome
from tests.matrix.store import ROOT, Store
from vlmpatch.tools.cases import Case

VERIFIED = ROOT / "data" / "verified.csv"
COLUMNS = ("torch", "transformers", "deepspeed", "peft", "accelerate")
NAMES = {
    "axolotl": "axolotl",
    "llamafactory": "LLaMA-Factory",
    "ms-swift": "ms-swift",
    "trl": "TRL",
    "timm": "timm",
}
NAMED = ("torch", "transformers", "deepspeed", "peft", "ms-swift", "trl", "axolotl", "timm")
FIXED, RIGHT, OVERRULED, WRONG, ABSENT = "✗ → ✓", "✓", "✗ → ✓ ⚠", "**?**", ""
EARLIER = "\\*"

WORDS = {
    "en": {
        "title": "# Compatibility",
        "intro": (
            "Measured, not promised: every row was run on the stacks that show a mark, two ranks over gloo, "
            "once without vlmpatch and once with it. A run is right when it ends, every trainable tensor "
            "that learns with checkpointing off has a gradient, all gradients equal those with it off "
            "(float32, relative difference at most 1e-5), and no rank differs from the other. "
            "`make matrix` measures again; the results "
            "are in `data/results/`, the rows in `cases/`."
        ),
        "dates": "Measured {first} to {last}, CPU; {torch} and Python 3.11 where a stack names no other.",
        "legend": (
            f"{FIXED} fails without vlmpatch, right with it · {RIGHT} right without and with it "
            f"· {OVERRULED} the same, where the user's own choice could only fail: overruled, with a warning "
            f"· {EARLIER} measured on an earlier revision · empty: the stack lacks what the row needs, or it "
            "was not run"
        ),
        "current": (
            "{count} of {all} results are of the row, its patch and the pins as they are today ({dates})."
        ),
        "earlier": (
            f"{{count}} ({{dates}}), marked {EARLIER}, were measured on an earlier revision of them, or on "
            "one that was not recorded."
        ),
        "joint": " ",
        "stacks": "## Stacks",
        "table": "## Results",
        "frameworks": "## Frameworks",
        "scripts": "## MiniCPM-V's fine-tune script",
        "aboutscripts": (
            "Without vlmpatch the script ends at the first of these failures. So here ✗ is the run with "
            "every patch but that of the row, and ✓ after it the run with all of them."
        ),
        "situation": "situation",
        "failure": "failure",
        "stack": "stack",
        "about": "what it stands for",
        "patches": "## Patches",
        "patch": "patch",
        "on": "verified on",
        "elsewhere": "no row of this table; its own end-to-end test covers it",
        "faults": "## Contradictions",
        "nofaults": "No row contradicts a gate: {count} of {count} bear out what `compat.toml` says.",
        "count": "{count}",
        "unmeasured": "Declared and not measured yet: {count} of {all}",
        "whole": "all of it",
    },
    "zh": {
        "title": "# 兼容性",
        "intro": (
            "以下均为实测：每一行在有标记的环境中以两个 rank（gloo）运行，一次不用 vlmpatch，一次使用。"
            "“正确”指：运行结束；关闭 checkpointing 时有梯度的每个可训练张量都有梯度；"
            "所有梯度与关闭 checkpointing 时相等（float32，相对误差不超过 1e-5）；各 rank 一致。"
            "`make matrix` 重新测量；"
            "结果见 `data/results/`，各行定义见 `cases/`。"
        ),
        "dates": "测量日期 {first} 至 {last}，CPU；未注明的环境为 {torch}、Python 3.11。",
        "legend": (
            f"{FIXED} 不用 vlmpatch 失败，使用后正确 · {RIGHT} 用与不用都正确 · {OVERRULED} "
            f"同前，但用户的显式选择必然失败：改用其他方式并提示 · {EARLIER} 在较早修订上测得 · "
            "空白：该环境缺少所需内容，或未运行"
        ),
        "current": "{all} 个结果中，{count} 个（{dates}）与今天的场景、补丁和固定版本一致。",
        "earlier": f"{{count}} 个（{{dates}}，以 {EARLIER} 标记）在较早的修订上测得，或当时未记录修订。",
        "joint": "",
        "stacks": "## 环境",
        "table": "## 结果",
        "frameworks": "## 框架",
        "scripts": "## MiniCPM-V 的微调脚本",
        "aboutscripts": (
            "完全不用 vlmpatch 时，脚本在其中第一个错误处就停止。"
            "因此这里的 ✗ 指启用除该行补丁以外的所有补丁，其后的 ✓ 指启用全部补丁。"
        ),
        "situation": "场景",
        "failure": "问题",
        "stack": "环境",
        "about": "代表什么",
        "patches": "## 补丁",
        "patch": "补丁",
        "on": "验证于",
        "elsewhere": "不在本表中；由其自己的端到端测试覆盖",
        "faults": "## 矛盾",
        "nofaults": "没有与 gate 矛盾的行：{count} 行全部证实 `compat.toml`。",
        "count": "{count} 个",
        "unmeasured": "已声明但尚未测量：{all} 个中有 {count} 个",
        "whole": "全部",
    },
}
Pair = tuple[Outcome, Outcome]
TORCH = Counter(stack.torch for stack in envs.read_stacks().values()).most_common(1)[0][0]


class Measured:
    """The results, judged."""

    def __init__(self, results: Store) -> None:
        self.rows = rows.read()
        self.stacks = {n: s for n, s in envs.read_stacks().items() if results.outcomes.get(n)}
        self.entries = store.entries().entries
        self.pairs: dict[tuple[str, str], Pair] = {}
        self.faults: dict[tuple[str, str], list[str]] = {}
        self.earlier: set[tuple[str, str]] = (
            set()
        )  # what is not of the row, its patch and its pins as they are
        for name, stack in self.stacks.items():
            for row in self.rows.values():
                bare, patched = results.get(name, row.id, "bare"), results.get(name, row.id, "patched")
                if bare and patched and rows.runs_on(row, stack):
                    self.pairs[name, row.id] = (bare, patched)
                    entry = self.entries.get(row.patch)
                    found = judge.faults(row, entry, rows.versions(stack), bare, patched)
                    self.faults[name, row.id] = found
                    if not store.is_current(stack, row, bare, patched):
                        self.earlier.add((name, row.id))

    def symbol(self, stack: str, row: Case) -> str:
        if (stack, row.id) not in self.pairs:
            return ABSENT
        if self.faults[stack, row.id]:
            return WRONG
        bare, _ = self.pairs[stack, row.id]
        mark = EARLIER if (stack, row.id) in self.earlier else ""
        if bare.outcome == "right":
            return RIGHT + mark
        return (OVERRULED if row.warns else FIXED) + mark

    def verified(self) -> dict[str, dict[str, set[str]]]:
        """Stacks on which a patch's failure was seen, and gone with it, by patch; and its revisions there."""
        found: dict[str, dict[str, set[str]]] = {}
        for (stack, name), (bare, patched) in self.pairs.items():
            row = self.rows[name]
            proven = bare.outcome != "right" and patched.applied == row.patch
            if row.patch and proven and not self.faults[stack, name]:
                revisions = found.setdefault(row.patch, {}).setdefault(stack, set())
                revisions.update([patched.revision] if patched.revision else [])
        return found

    def standing(self, words: Mapping[str, str]) -> str:
        """How much of it is of today, and how much is of earlier revisions."""
        dates: dict[bool, list[str]] = {True: [], False: []}  # of earlier pairs, of current ones
        for key, pair in self.pairs.items():
            dates[key in self.earlier].append(max(found.date for found in pair))
        parts = [
            words["current"].format(count=len(dates[False]), all=len(self.pairs), dates=_span(dates[False]))
        ]
        if dates[True]:
            parts.append(words["earlier"].format(count=len(dates[True]), dates=_span(dates[True])))
        return words["joint"].join(parts)


def _span(dates: Sequence[str]) -> str:
    first, last = (min(dates), max(dates)) if dates else ("–", "–")
    return first if first == last else f"{first} – {last}"


# --- the pages ----------------------------------------------------------------------------------


def page(measured: Measured, language: str) -> str:
    words = WORDS[language]
    plain = [name for name, stack in measured.stacks.items() if not rows.framework(stack)]
    framed = [name for name in measured.stacks if name not in plain]
    dates = sorted({outcome.date for pair in measured.pairs.values() for outcome in pair}) or ["–"]
    parts = [
        words["title"],
        pages.in_other_language(language, "compatibility"),
        words["intro"],
        words["dates"].format(first=dates[0], last=dates[-1], torch=TORCH.replace("==", " ")),
        words["legend"],
        _verdict(measured, words),
        measured.standing(words),
        _unmeasured(measured, words),
        words["table"],
        _results(measured, plain, language),
        words["frameworks"],
        _results(measured, framed, language),
        words["scripts"],
        words["aboutscripts"],
        _results(measured, plain, language, script=True),
        words["stacks"],
        _stacks(measured, words),
        words["patches"],
        _patches(measured, words),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(measured: Measured, words: Mapping[str, str]) -> str:
    wrong = [(key, fault) for key, faults in measured.faults.items() for fault in faults]
    if not wrong:
        return words["nofaults"].format(count=len(measured.pairs))
    lines = [f"- `{row}` · `{stack}`: {fault}" for (stack, row), fault in wrong]
    return "\n".join([words["faults"], "", *lines])


def _unmeasured(measured: Measured, words: Mapping[str, str]) -> str:
    """What `make matrix` would still run; a table must not look fuller than it is."""
    declared = {
        n: [r.id for r in measured.rows.values() if rows.runs_on(r, s)] for n, s in envs.read_stacks().items()
    }
    absent = {n: [row for row in ids if (n, row) not in measured.pairs] for n, ids in declared.items()}
    listed = [
        f"- `{name}`: {words['whole'] if ids == declared[name] else ', '.join(ids)}"
        for name, ids in absent.items()
        if ids
    ]
    if not listed:
        return ""
    count, every = (sum(len(ids) for ids in rows_.values()) for rows_ in (absent, declared))
    summary = words["unmeasured"].format(count=count, all=every)
    return "\n".join(("<details markdown>", f"<summary>{summary}</summary>", "", *listed, "", "</details>"))


def _results(measured: Measured, stacks: Sequence[str], language: str, *, script: bool = False) -> str:
    words = WORDS[language]
    kind = [row for row in measured.rows.values() if (row.how == "script") == script]
    shown = [row for row in kind if any((s, row.id) in measured.pairs for s in stacks)]
    if not shown:
        return ""
    head = [words["situation"], words["failure"], *(_label(measured.stacks[name]) for name in stacks)]
    body = [
        [
            f"{getattr(row, language)}<br>`{row.id}`",
            " ".join(row.failures),
            *(measured.symbol(s, row) for s in stacks),
        ]
        for row in shown
    ]
    return pages.table(head, body)


def _label(stack: Stack) -> str:
    installed = rows.versions(stack)
    own = rows.framework(stack)
    first = f"{NAMES[own]} {installed[own]}<br>" if own else ""
    other = f"torch {installed['torch']}<br>" if stack.torch != TORCH else ""
    return f"{first}{other}tf {installed['transformers']}<br>ds {installed['deepspeed']}"


def _stacks(measured: Measured, words: Mapping[str, str]) -> str:
    body = []
    for name, stack in measured.stacks.items():
        installed = rows.versions(stack)
        own = rows.framework(stack)
        about = stack.about + (f" ({NAMES[own]} {installed[own]})" if own else "")
        body.append([f"`{name}`", *(installed.get(column, "") for column in COLUMNS), about])
    return pages.table([words["stack"], *COLUMNS, words["about"]], body)


def _patches(measured: Measured, words: Mapping[str, str]) -> str:
    verified = measured.verified()
    body = []
    for name in measured.entries:
        stacks = verified.get(name, {})
        listed = ", ".join(f"`{stack}`" for stack in stacks)
        told = f"{words['count'].format(count=len(stacks))}: {listed}" if stacks else words["elsewhere"]
        body.append([f"`{name}`", told])
    return pages.table([words["patch"], words["on"]], body)


# --- verified.csv -------------------------------------------------------------------------------


def verified_csv(measured: Measured) -> str:
    """The stacks each patch was verified on, for the command line; see ``vlmpatch.tools.doctor.verified``."""
    verified = measured.verified()
    versions = {name: rows.versions(stack) for name, stack in measured.stacks.items()}
    lines = [
        (patch, " ".join(sorted(revisions)), *(versions[stack].get(name, "") for name in NAMED))
        for patch in sorted(verified)
        for stack, revisions in verified[patch].items()
    ]
    return table.text(("patch", "revisions", *NAMED), lines)
