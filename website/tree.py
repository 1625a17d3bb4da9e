"""The pages of the site: what each is made from, where it lies, and where it stands in the navigation.

A page keeps the links it has in the repository, relative to the file it is made from; ``moved`` turns them
into those of the site, where each failure and each patch has a page of its own.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.generate.failures import CATALOG, KNOWN
from tests.generate.patches import by_upstream
from tests.lab.pages import DOCS, LANGUAGES, ROOT
from website import failure_pages, patch_pages, reports, results

DESCRIPTION = {
    "en": "Version-gated patches that let vision-language models train with gradient checkpointing",
    "zh": "按版本启用的补丁：让视觉语言模型在梯度检查点下正常训练",
}
# What lies in the root of the repository, as English and Chinese; a page without Chinese is English in both.
ROOT_PAGES = {
    "overview.md": ("README.md", "README.zh-CN.md"),
    "security.md": ("SECURITY.md", "SECURITY.zh-CN.md"),
    "contributing.md": ("CONTRIBUTING.md", "CONTRIBUTING.md"),
    "changelog.md": ("CHANGELOG.md", "CHANGELOG.md"),
}
# The pages of docs/ in the order of the navigation; one that is not named here goes to the end of the guides.
SECTIONS = {
    ("Guides", "指南"): [
        "overview.md",
        "deploy.md",
        "doctor.md",
        "watch.md",
        "json.md",
        "lock.md",
        "frameworks.md",
        "mixed-batches.md",
        "minicpm-v.md",
    ],
    ("Results", "结果"): [
        *("old-results.md", "compatibility.md", "field-reports.md", "families.md"),
        *("mixed-batches-measured.md", "zero3-gathers.md", "reference/launches.md"),
        "reference/programs.md",
        *("reference/axes.md", "reference/mishaps.md", "evidence.md"),
    ],
    ("Project", "项目"): [
        *(
            "stability.md",
            "contributing.md",
            "architecture.md",
            "collectives.md",
            "changelog.md",
            "security.md",
        ),
    ],
}
START, FAILURES, PATCHES = ("Start", "首页"), ("Failures", "问题"), ("Patches", "补丁")
DECISIONS = ("Decisions", "设计决定")
NAMED = {"overview.md": ("Overview", "概览")}  # in place of the first heading
# Where a generated page lies, if not in a folder `reference`; those of failures and patches are taken apart.
REFERENCE = {
    "compatibility.md": "compatibility.md",
    "doctor-codes.md": "doctor-codes.md",
    "families.md": "families.md",
    "failures.md": "failures/index.md",
    "field-reports.md": "field-reports.md",
    "mixed-batches.md": "mixed-batches-measured.md",
    "patches.md": "patches/index.md",
}
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)#:\s]*)(#[^)\s:]*)?\)")
_FIGURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+\.svg)\)")
_STYLE = re.compile(r"<style>.*?</style>\n")  # the site's own colours stand in its place
# Where a paragraph of Chinese is wrapped: a browser would show a space there.
_WRAPPED = re.compile(
    r"(?:(?<=[\u3000-\u303f\uff00-\uffef])|(?<=[\u4e00-\u9fff])(?=\n *[\u3000-\u9fff\uff00-\uffef]))"
    r"\n *(?!\s|[#|>:<{]|[*+-] |\d+\. |```|!!!|\?\?\?)"
)
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_TWIN = re.compile(r"^\[(?:中文|English)\]\([^)]*\)\n\n?", re.MULTILINE)


class Page(NamedTuple):
    """A page: its place on the site, its Markdown, and the file of the repository its links start from."""

    address: str
    text: str
    source: str

    @property
    def title(self) -> str:
        """The first heading, without Markdown's marks."""
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return re.sub(r"[`*]", "", found[1]) if found else self.address


def pages(language: str) -> list[Page]:
    """Every page of one language."""
    own = Path(__file__).parent / "pages"
    made = [Page("index.md", (own / f"index.{language}.md").read_text("utf-8"), "website/index.md")]
    for address, sources in ROOT_PAGES.items():
        source = sources[LANGUAGES.index(language)]
        made.append(Page(address, (ROOT / source).read_text("utf-8"), source))
    made += _by_hand(language)
    made += _reference(language)
    made += [Page(*page) for page in (*failure_pages.pages(language), *patch_pages.pages(language))]
    return made


def _by_hand(language: str) -> Iterator[Page]:
    """What is written in docs/, apart from the other language and what is generated."""
    folder = DOCS[language]
    for path in sorted(folder.rglob("*.md")):
        address = path.relative_to(folder).as_posix()
        if not address.startswith(("zh-CN/", "reference/")):
            yield Page(address, path.read_text("utf-8"), _within(path))


def _reference(language: str) -> Iterator[Page]:
    """The generated pages that stay in one piece, two of them with more than Markdown has."""
    folder = DOCS[language] / "reference"
    for path in sorted(folder.glob("*.md")):
        address, text = _reference_address(path.name), path.read_text("utf-8")
        if address == "compatibility.md":
            text = results.page(language)
        elif address == "field-reports.md":
            text = reports.with_search(text, language)
        elif address in ("failures/index.md", "patches/index.md"):
            continue
        yield Page(address, text, _within(path))


def _within(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- links ----------------------------------------------------------------------------------------------


def moved(page: Page, shown: Mapping[str, str]) -> str:
    """The Markdown of ``page`` with the links of the site.

    What has no page there is not linked; a link that shows the name of a file shows the title of its page.
    """

    def link(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        if not path and not page.source.endswith(("failures.md", "patches.md")):
            return match[0]
        start = posixpath.dirname(page.source)
        target = posixpath.normpath(posixpath.join(start, path)) if path else page.source
        if (found := address_of(target, anchor)) is None:
            return text
        address, anchor = found
        text = shown.get(address, text) if text.endswith(".md") else text
        return f"[{text}]({posixpath.relpath(address, posixpath.dirname(page.address) or '.')}{anchor})"

    def drawn(match: re.Match[str]) -> str:
        path = ROOT / posixpath.dirname(page.source) / match[1]
        both = _svg(path, "wide") + _svg(path.with_suffix(".narrow.svg"), "narrow")
        return f'<figure class="vp-figure">{both}</figure>'

    text = unwrapped(_TWIN.sub("", page.text))
    return _LINK.sub(link, _FIGURE.sub(drawn, text))


def unwrapped(text: str) -> str:
    """``text`` without the line breaks within paragraphs of Chinese; code stays as it is."""
    return "".join(
        part if part.lstrip().startswith("```") else _WRAPPED.sub("", part) for part in _FENCED.split(text)
    )


def _svg(path: Path, kind: str) -> str:
    return _STYLE.sub("", path.read_text("utf-8")).strip().replace("<svg ", f'<svg class="vp-{kind}" ', 1)


def address_of(target: str, anchor: str) -> tuple[str, str] | None:
    """Where a file of the repository, and a place in it, are on the site, if they are."""
    if target.startswith("website/"):
        return target.removeprefix("website/"), anchor
    if target.startswith("patches/") and target.endswith(".py"):
        return f"patches/{_id(target)}.md", "#source"
    for address, sources in ROOT_PAGES.items():
        if target in sources:
            return address, anchor
    within = target.removeprefix("docs/").removeprefix("zh-CN/")
    if target.startswith("docs/") and not within.startswith("reference/"):
        return within, anchor
    name = within.removeprefix("reference/")
    if not target.startswith("docs/"):
        return None
    own = anchor.removeprefix("#")
    if name == "failures.md" and (failure := KNOWN.called(own)):
        return f"failures/{failure.id}.md", ""
    if name == "patches.md" and own in CATALOG.entries:
        return f"patches/{own}.md", ""
    return _reference_address(name), anchor


def _reference_address(name: str) -> str:
    return REFERENCE.get(name, f"reference/{name}")


def _id(path: str) -> str:
    return posixpath.basename(path).removesuffix(".py").replace("_", "-")


# --- navigation -----------------------------------------------------------------------------------------


def titles(language: str) -> dict[str, str]:
    """The title of every page by its address."""
    named = {address: names[LANGUAGES.index(language)] for address, names in NAMED.items()}
    return {page.address: page.title for page in pages(language)} | named


def navigation(language: str) -> list[dict[str, Any]]:
    """What mkdocs takes for ``nav``; every page is in it once."""
    known, which = titles(language), LANGUAGES.index(language)

    def entries(addresses: Iterable[str]) -> list[Any]:
        return [a if a.endswith("index.md") else {known[a]: a} for a in addresses]

    def within(folder: str) -> list[Any]:
        return entries(address for address in known if address.startswith(folder))

    nav: list[dict[str, Any]] = [{START[which]: "index.md"}, {FAILURES[which]: within("failures/")}]
    nav.append({PATCHES[which]: ["patches/index.md", *_patches_by_upstream()]})
    nav += [{names[which]: entries(addresses)} for names, addresses in _sections(known).items()]
    ((_, project),) = nav[-1].items()
    project.append({DECISIONS[which]: within("decisions/")})
    return nav


def _patches_by_upstream() -> list[dict[str, Any]]:
    return [
        {upstream: [{entry.id: f"patches/{entry.id}.md"} for entry in entries]}
        for upstream, entries in by_upstream().items()
    ]


def _sections(known: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """The sections with their pages; what none of them names goes to the end of the first."""
    named = {address for addresses in SECTIONS.values() for address in addresses}
    own = ("index.md", "failures/", "patches/", "decisions/")
    rest = [address for address in known if address not in named and not address.startswith(own)]
    (first, guides), *others = SECTIONS.items()
    return {first: [*guides, *rest], **dict(others)}
