"""The counts of docs/evidence.md: the programs that must not notice, what ``tests.trust`` tried last, and how
``explain`` did on texts that were new to it."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.innocents.texts import OWN, PROGRAMS
from tests.lab import pages
from tests.trust import record

# Public texts that nobody here had seen, the cause of each judged before ``explain`` read it: `judged` has
# the failures that are right, `unknown` where no page has the cause, `other` where it is about something
# else, `open` where it does not decide. `form` says whether a text has a `message` or a log, or is `prose`
# alone; it was not kept of the first batches. `before` is the answer without what the kind of an error says,
# by commit f7d02cf, which knew none of them either.
FRESH = pages.ROOT / "data" / "explain-fresh.csv"
BEGIN = "<!-- generated from data/explain-fresh.csv: make generate -->"
HEAD = {
    "en": ("batch", "decide", "right", "among several", "wrong", "missed", "about something else", "claimed"),
    "zh": ("批次", "能够判定", "正确", "列为可能之一", "错误", "没有认出", "与此无关", "误认"),
}
# The sentences that count; each group is the number of its name.
COUNTED = {
    "en": (
        r"(?P<programs>[\d,]+) programs that have nothing to do with vlmpatch",
        r"so do (?P<beside>[\d,]+) more beside Lightning",
        r"takes the (?P<patches>[\d,]+) patches of that stack through (?P<orders>[\d,]+) orders of\s+"
        r"events, (?P<faults>[\d,]+) faults, (?P<rounds>[\d,]+) rounds of undo and redo, "
        r"and (?P<threads>[\d,]+) threads",
        r"Of the (?P<deciding>[\d,]+) that decide (?P<right>[\d,]+) were answered rightly, "
        r"(?P<perhaps>[\d,]+) had the right\s+failure among those that it may be, "
        r"(?P<wrong>[\d,]+) were answered wrongly\s+and (?P<missed>[\d,]+) were missed",
        r"of the (?P<others>[\d,]+) about something else (?P<claimed>[\d,]+) were\s+claimed",
        r"Of the (?P<message_deciding>[\d,]+) that decide and have a message or a log "
        r"(?P<message_right>[\d,]+) were answered\s+rightly, "
        r"of the (?P<prose_deciding>[\d,]+) that are prose alone (?P<prose_right>[\d,]+)",
        r"Of the (?P<kind_deciding>[\d,]+) from batch 33 on that decide and have a message,\s+"
        r"(?P<kind_before>[\d,]+) were answered rightly by `explain`\s+as it was before, and "
        r"(?P<kind_right>[\d,]+) by it",
    ),
    "zh": (
        r"(?P<programs>[\d,]+) 个与它无关的程序",
        r"另有 (?P<beside>[\d,]+) 个与 Lightning",
        r"让该环境的 (?P<patches>[\d,]+) 个补丁经历 (?P<orders>[\d,]+) 种事件顺序、"
        r"(?P<faults>[\d,]+) 次故障、\s*(?P<rounds>[\d,]+) 轮撤销与恢复以及 (?P<threads>[\d,]+) 个线程",
        r"能够判定的 (?P<deciding>[\d,]+) 条中，(?P<right>[\d,]+) 条回答正确，"
        r"(?P<perhaps>[\d,]+) 条把正确的失败列为可能之一，\s*(?P<wrong>[\d,]+) 条回答错误，"
        r"(?P<missed>[\d,]+) 条没有认出",
        r"与此无关的 (?P<others>[\d,]+) 条中有 (?P<claimed>[\d,]+) 条被误认",
        r"能够判定且带有报错或日志的 (?P<message_deciding>[\d,]+) 条中，"
        r"(?P<message_right>[\d,]+) 条回答正确；"
        r"只有文字描述的 (?P<prose_deciding>[\d,]+) 条中，(?P<prose_right>[\d,]+) 条回答正确",
        r"第 33 批起能够判定且带有报错的 (?P<kind_deciding>[\d,]+) 条中，"
        r"此前的 `explain` 答对 (?P<kind_before>[\d,]+) 条，改进后答对 (?P<kind_right>[\d,]+) 条",
    ),
}


def page(language: str) -> Path:
    """Where the page lies."""
    return pages.DOCS[language] / "evidence.md"


def filled(language: str) -> str:
    """The page with its counts and its table made anew."""
    text = counted(page(language).read_text("utf-8"), language, counts())
    return pages.filled(text, BEGIN, pages.table(HEAD[language], _batches()))


def _batches() -> list[list[str]]:
    rows = drawn()
    table = []
    for batch in dict.fromkeys(row["batch"] for row in rows):
        told = fresh([row for row in rows if row["batch"] == batch])
        names = ("deciding", "right", "perhaps", "wrong", "missed", "others", "claimed")
        table.append([batch, *(str(told[name]) for name in names)])
    return table


def counts() -> dict[str, int]:
    """How many programs there are, and what ``python -m tests.trust`` counted last."""
    beside = sum(len(programs) for programs, _ in OWN.values())
    return {"programs": len(PROGRAMS), "beside": beside, **record.read(), **fresh(drawn())}


def drawn() -> list[dict[str, str]]:
    """Every text that was new to ``explain``, and its answer."""
    with FRESH.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def fresh(rows: list[dict[str, str]]) -> dict[str, int]:
    """How ``explain`` did on ``rows``."""
    judged = [row for row in rows if not {"other", "open"} & set(row["judged"].split())]
    deciding = [row["answer"] for row in judged]
    forms = {form: [row["answer"] for row in judged if row["form"] == form] for form in ("message", "prose")}
    kinds = [row for row in judged if row["before"] and row["form"] == "message"]
    others = [row["answer"] for row in rows if row["judged"] == "other"]
    answers = Counter(deciding)
    return {
        "deciding": len(deciding),
        **{each: answers[each] for each in ("right", "perhaps", "wrong", "missed")},
        "others": len(others),
        "claimed": others.count("claimed"),
        **{f"{form}_deciding": len(given) for form, given in forms.items()},
        **{f"{form}_right": given.count("right") for form, given in forms.items()},
        "kind_deciding": len(kinds),
        "kind_before": sum(row["before"] == "right" for row in kinds),
        "kind_right": sum(row["answer"] == "right" for row in kinds),
    }


def counted(text: str, language: str, numbers: Mapping[str, int]) -> str:
    """``text`` with ``numbers`` in the sentences that count.

    Raises:
        ValueError: a sentence is not there.
    """
    for sentence in COUNTED[language]:
        found = re.search(sentence, text)
        if found is None:
            raise ValueError(f"the page has no sentence {sentence}")
        for name in reversed(found.groupdict()):
            text = f"{text[: found.start(name)]}{numbers[name]:,}{text[found.end(name) :]}"
    return text
