"""docs/reference/patches.md: every patch, from its entry in the catalog and the head of its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.generate.failures import CATALOG, KNOWN
from tests.lab import pages
from vlmpatch.catalog.location import patch_path
from vlmpatch.catalog.model import Entry
from vlmpatch.tools.explain import stories
from vlmpatch.tools.view.language import Words

PATCHES = pages.ROOT / "patches"
WORDS = {
    "en": {
        "title": "# The patches",
        "intro": (
            "Every patch, by the project it patches: what it fixes, when it acts, and what its file "
            "says of itself. A patch acts where the versions lie in its range and the installed "
            "code shows the bug; `python -m vlmpatch doctor` says which do in your environment."
        ),
        "ends": "Fixes",
        "severity": "Effect",
        "acts": "Applies to",
        "target": "Changes",
        "upstream": "Upstream",
        "off": "Switch off",
        "was": "Formerly",
        "proven": "Verified on",
        "elsewhere": "its own end-to-end test",
        "file": "File",
        "crash": "a crash",
        "hang": "a hang",
        "silent": "wrong training, without an error",
        "cost": "time or memory",
        "join": ", ",
        "colon": ": ",
    },
    "zh": {
        "title": "# 各个补丁",
        "intro": (
            "按所修复的项目列出每个补丁：解决什么、何时起作用，以及补丁文件对自己的说明。"
            "版本在范围之内、且已安装的代码确有该问题时，补丁才起作用；`python -m vlmpatch doctor` "
            "会说明在你的环境里哪些起作用。"
        ),
        "ends": "解决",
        "severity": "问题表现",
        "acts": "适用版本",
        "target": "修改",
        "upstream": "上游",
        "off": "关闭",
        "was": "曾用 id",
        "proven": "验证于",
        "elsewhere": "自己的端到端测试",
        "file": "文件",
        "crash": "报错退出",
        "hang": "卡住",
        "silent": "训练出错且没有报错",
        "cost": "耗时或占内存",
        "join": "、",
        "colon": ":",
        "english": "补丁文件的说明（尚无中文）：",
    },
}


def page(language: str, verified: Mapping[str, Iterable[str]]) -> str:
    """The page in one language; ``verified`` are the stacks of the matrix that show each patch at work."""
    words, listed_by = WORDS[language], by_upstream()
    parts = [words["title"], pages.in_other_language(language, "patches"), words["intro"]]
    listed = [(upstream, [f"[`{e.id}`](#{e.id})" for e in those]) for upstream, those in listed_by.items()]
    parts.append("\n".join(f"- **{name}**{words['colon']}{words['join'].join(ids)}" for name, ids in listed))
    for upstream, those in listed_by.items():
        parts.append(f"## {upstream}")
        for entry in those:
            parts += section(entry, verified.get(entry.id, []), language)
    return "\n\n".join(parts) + "\n"


def by_upstream() -> dict[str, list[Entry]]:
    """The patches by the project they change."""
    found: dict[str, list[Entry]] = {}
    for entry in CATALOG.entries.values():
        found.setdefault(entry.module.partition(".")[0], []).append(entry)
    return dict(sorted(found.items()))


def section(entry: Entry, stacks: Iterable[str], language: str) -> Iterator[str]:
    """One patch."""
    words, say = WORDS[language], Words(language)
    join, path = words["join"], Path(patch_path(str(PATCHES), entry.module))
    yield f"### {entry.id}"
    yield say.pick((entry.summary, entry.summary_zh))
    own = stories.told(path, language)
    facts = {
        "ends": join.join(
            f"[{id_}](failures.md#{id_.lower()}) {say.pick(KNOWN.known[id_].title)}" for id_ in entry.failures
        ),
        "severity": words[entry.severity],
        "acts": join.join(f"{name} `{range_}`" for name, range_ in entry.requires.items()),
        "target": join.join(f"`{target}`" for target in entry.targets),
        "upstream": join.join(f"<{link}>" for link in entry.upstream if link not in own.text),
        "proven": join.join(f"`{stack}`" for stack in stacks) or words["elsewhere"],
        "off": f"`VLMPATCH_DISABLE={entry.id}`",
        "was": join.join(f"`{old}`" for old in entry.was),
        "file": f"[{path.relative_to(pages.ROOT)}]({_up(language)}{path.relative_to(pages.ROOT)})",
    }
    yield "\n".join(f"- {words[name]}{words['colon']}{said}" for name, said in facts.items() if said)
    yield own.text if own.translated else f"{words['english']}\n\n{own.text}"


def _up(language: str) -> str:
    return "../" * len(pages.reference(language, "patches").parent.relative_to(pages.ROOT).parts)
