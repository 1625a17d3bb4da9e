"""A page a patch, and the page that lists them by the project they change."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from tests.generate.failures import CATALOG, KNOWN, linked
from tests.generate.patches import PATCHES, by_upstream
from tests.generate.patches import WORDS as SAID
from tests.lab import pages as docs
from vlmpatch.catalog.location import patch_path
from vlmpatch.catalog.model import Entry
from vlmpatch.tools.explain import stories
from vlmpatch.tools.view.language import Words
from website import results
from website.failure_pages import WIDE, search_box

SOURCE = {"en": "docs/reference/patches.md", "zh": "docs/zh-CN/reference/patches.md"}
WORDS = {
    "en": {
        "find": "Filter: a patch, a failure, a version",
        "story": "## How it works",
        "off": "## Switch it off",
        "how": "For one run, or for a stretch of code.",
        "measured": "## Measured on",
        "seen": "On these stacks the failure was seen without this patch, and not with it:",
        "source": "The whole file",
    },
    "zh": {
        "find": "筛选：补丁、问题、版本",
        "story": "## 工作原理",
        "english": "## 工作原理（英文）",
        "off": "## 关闭",
        "how": "只对一次运行，或只对一段代码。",
        "measured": "## 实测环境",
        "seen": "在下列环境中，不用此补丁时出现该问题，使用后不再出现：",
        "source": "完整文件",
    },
}
HEADS = {
    "en": {
        "all": ("patch", "what it does", "fixes", "versions"),
        "stacks": ("stack", "torch", "transformers", "deepspeed", "peft", "framework"),
    },
    "zh": {
        "all": ("补丁", "做什么", "修复", "版本"),
        "stacks": ("环境", "torch", "transformers", "deepspeed", "peft", "框架"),
    },
}


def pages(language: str) -> Iterator[tuple[str, str, str]]:
    """Address, Markdown and source of each."""
    yield "patches/index.md", _all(language), SOURCE[language]
    for entry in CATALOG.entries.values():
        yield f"patches/{entry.id}.md", "\n\n".join(_one(entry, language)) + "\n", SOURCE[language]


def _all(language: str) -> str:
    words, say, said = WORDS[language], Words(language), SAID[language]
    parts = [WIDE, said["title"], said["intro"], search_box(words["find"])]
    for upstream, entries in by_upstream().items():
        rows = [
            (
                f"[`{entry.id}`](#{entry.id})",
                say.pick((entry.summary, entry.summary_zh)),
                " ".join(f"[{id_}](failures.md#{id_.lower()})" for id_ in entry.failures),
                _versions(entry),
            )
            for entry in entries
        ]
        parts += [f"## {upstream}", docs.table(HEADS[language]["all"], rows)]
    return "\n\n".join(parts) + "\n"


def _one(entry: Entry, language: str) -> Iterator[str]:
    words, say = WORDS[language], Words(language)
    path = Path(patch_path(str(PATCHES), entry.module))
    yield f"# {entry.id}"
    yield say.pick((entry.summary, entry.summary_zh))
    yield _facts(entry, language)
    story = stories.told(path, language)
    yield words["story" if story.translated else "english"]
    yield linked(story.text).replace("](#", "](failures.md#")
    yield words["off"]
    yield words["how"]
    yield f"```bash\nVLMPATCH_DISABLE={entry.id} python train.py\n```"
    yield f'```python\nwith vlmpatch.disabled("{entry.id}"):\n    …\n```'
    yield words["measured"]
    yield from _measured(entry, language)
    yield from _source(path, words["source"])


def _facts(entry: Entry, language: str) -> str:
    say, said = Words(language), SAID[language]
    titles = {id_: say.pick(KNOWN.known[id_].title) for id_ in entry.failures}
    facts = {
        "ends": "<br>".join(f"[{id_}](failures.md#{id_.lower()}) {title}" for id_, title in titles.items()),
        "severity": said[entry.severity],
        "acts": _versions(entry),
        "target": "<br>".join(f"`{target}`" for target in entry.targets),
        "upstream": "<br>".join(f"<{link}>" for link in entry.upstream),
    }
    return docs.table(("", ""), [(f"**{said[name]}**", told) for name, told in facts.items() if told])


def _measured(entry: Entry, language: str) -> Iterator[str]:
    said = SAID[language]
    if stacks := _verified().get(entry.id):
        yield WORDS[language]["seen"]
        yield docs.table(HEADS[language]["stacks"], [results.row_of(stack) for stack in stacks])
    else:
        yield f"{said['proven']}{said['colon']}{said['elsewhere']}."


def _source(path: Path, title: str) -> Iterator[str]:
    """The file itself, folded."""
    yield '<a id="source"></a>'
    yield f'??? note "{title}: {path.relative_to(docs.ROOT)}"'
    indented = path.read_text("utf-8").replace("\n", "\n    ")
    yield f"    ```python\n    {indented}\n    ```"


def _versions(entry: Entry) -> str:
    return "<br>".join(f"{name} `{range_}`" for name, range_ in entry.requires.items())


@functools.cache
def _verified() -> dict[str, dict[str, set[str]]]:
    return results.measured().verified()
