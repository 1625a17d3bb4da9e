"""Writes a release: its version wherever that is said, date, address, and the changelog from fragments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.release.built import Refused
from tests.release.proofs import ROOT, changed, head

# Where the version of vlmpatch, `{}`, is said; the first is the one that the others follow.
PLACES = (
    ("vlmpatch/__init__.py", '__version__ = "{}"'),
    ("CITATION.cff", "\nversion: {}\n"),
    ("examples/downstream/requirements.txt", "vlmpatch=={}\n"),
    ("examples/downstream/vlmpatch.lock", 'vlmpatch = "{}"\n'),
    ("examples/cluster/kubernetes.yaml", "image: tiny-vl:{}\n"),
    ("examples/air-gapped/fetch.sh", "vlmpatch=={}"),
    ("docs/lock.md", 'vlmpatch = "{}"\n'),
    ("docs/zh-CN/lock.md", 'vlmpatch = "{}"\n'),
)
VERSION = r"\d+\.\d+\.\d+"
NO_ADDRESS = re.compile(r"# \[project\.urls\] is left out: .*\n")
# RFC 2606 and RFC 6761: nobody can be reached there.
RESERVED = re.compile(r"(^|\.)(example(\.(com|net|org))?|invalid|test|localhost|local)$")
PAGES = {
    "Source": "",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
    "Documentation": "/tree/main/docs",
}


def write(version: str, date: str, address: str = "", root: Path = ROOT) -> None:
    """Write release ``version`` into the files of ``root``; nothing is committed.

    Args:
        version: ``X.Y.Z``.
        date: of the release, ``YYYY-MM-DD``.
        address: of the public repository, where it is known.
        root: of the repository.

    Raises:
        Refused: something differs from the last commit, a place does not say the version as it should, or the
            address is none; then nothing is written.
    """
    if differs := changed(head(root), root):
        raise Refused(f"{', '.join(differs[:5])} differ from the last commit")
    texts = {name: _text(root, name, form, version) for name, form in PLACES}
    cited = re.sub(r"\ndate-released: .*", "", texts["CITATION.cff"])
    cited = cited.replace(f"\nversion: {version}\n", f"\nversion: {version}\ndate-released: {date}\n")
    texts["CITATION.cff"] = cited
    if address:
        _said(texts, address, root)
    for name, text in texts.items():
        (root / name).write_text(text, "utf-8")
    told = root / "CHANGELOG.md"
    before = told.read_text("utf-8")
    if f"\n## [{version}] " not in before:
        _towncrier(root, version, date, "--yes")
        return
    draft = _towncrier(root, version, date, "--draft")
    told.write_text(with_late(before, version, date, draft), "utf-8")
    for path in (root / "changelog.d").glob("*.*.md"):
        path.unlink()


def _towncrier(root: Path, version: str, date: str, how: str) -> str:
    words = [sys.executable, "-m", "towncrier", "build", how, "--version", version, "--date", date]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"towncrier: {done.stdout}{done.stderr}")
    return done.stdout


def with_late(changelog: str, version: str, date: str, draft: str) -> str:
    """``changelog`` with what ``draft`` has, at the end of each kind; the release is of ``date`` now."""
    head, mark, rest = changelog.partition(f"\n## [{version}] ")
    release, after, older = rest.partition("\n## [")
    kinds = re.split(r"^### (\w+)\n", release, flags=re.M)
    texts = dict(zip(kinds[1::2], kinds[2::2], strict=True))
    late = re.split(r"^### (\w+)\n", draft, flags=re.M)
    for kind, items in zip(late[1::2], late[2::2], strict=True):
        texts[kind] = f"{texts.get(kind, '').rstrip()}\n{items.strip()}\n\n"
    body = "".join(f"### {kind}\n{text}" for kind, text in texts.items())
    said = re.sub(r"^- .*", f"- {date}", kinds[0])
    return f"{head}{mark}{said}{body.rstrip()}\n{after}{older}"


def move(address: str, root: Path = ROOT) -> None:
    """Write where the repository is to be found into the files of ``root``: a release need not know it yet.

    Raises:
        Refused: it is no address that a stranger could open.
    """
    texts = {"CITATION.cff": (root / "CITATION.cff").read_text("utf-8")}
    _said(texts, address, root)
    for name, text in texts.items():
        (root / name).write_text(text, "utf-8")


def _said(texts: dict[str, str], address: str, root: Path) -> None:
    host = urlsplit(address).hostname or ""
    if not address.startswith("https://") or "." not in host or RESERVED.search(host):
        raise Refused(f"{address} is no public address")
    cited = re.sub(r"\nrepository-code: .*", "", texts["CITATION.cff"]).rstrip("\n")
    texts["CITATION.cff"] = f"{cited}\nrepository-code: {address}\n"
    texts["pyproject.toml"] = _with_address((root / "pyproject.toml").read_text("utf-8"), address)


def _text(root: Path, name: str, form: str, version: str) -> str:
    """The text of a file with the new version in the place of the old."""
    pattern = re.escape(form).replace(r"\{\}", VERSION)
    text, count = re.subn(pattern, lambda _: form.format(version), (root / name).read_text("utf-8"))
    if not count:
        raise Refused(f"{name} does not say {form.strip()}")
    return text


def _with_address(text: str, address: str) -> str:
    lines = "".join(f'{name} = "{address.rstrip("/")}{page}"\n' for name, page in PAGES.items())
    text, count = NO_ADDRESS.subn(f"[project.urls]\n{lines}", text)
    if not count:
        text, count = re.subn(r"\[project\.urls\]\n(?:\w+ = .*\n)*", f"[project.urls]\n{lines}", text)
    if not count:
        raise Refused("pyproject.toml has no place for [project.urls]")
    return text
