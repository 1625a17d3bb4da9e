"""``changelog.d/``: every fragment is named as its README says, and a release takes all of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "changelog.d"
OTHERS = {"README.md", "template.md.jinja"}
KINDS = tuple(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["towncrier"]["fragment"])
NAME = re.compile(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md")


def fragments() -> list[Path]:
    return sorted(path for path in FOLDER.iterdir() if path.name not in OTHERS)


def test_fragments_are_well_named() -> None:
    assert [path.name for path in fragments() if not NAME.fullmatch(path.name)] == []


def test_fragments_are_paragraphs() -> None:
    assert [path.name for path in fragments() if not re.match(r"[^\s#*-]", path.read_text())] == []


def test_the_readme_names_every_kind() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []


def releases() -> dict[str, str]:
    """What the changelog says of each release."""
    pieces = re.split(r"^## \[(\d.*?)\].*$", (CHECKOUT / "CHANGELOG.md").read_text("utf-8"), flags=re.M)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def test_a_release_is_one_text() -> None:
    """Fragments put below one another have a heading several times."""
    for version, text in releases().items():
        headings = re.findall(r"^(?:### .*|\*\*.*?\*\*)", text, re.M)
        assert headings, version
        assert sorted(headings) == sorted(set(headings)), version


def test_every_patch_is_told_of() -> None:
    told = "".join([*releases().values(), *(path.read_text("utf-8") for path in fragments())])
    ids = re.findall(r'^id = "(.+)"$', (CHECKOUT / "compat.toml").read_text("utf-8"), re.M)
    assert len(ids) > 50
    assert [id_ for id_ in ids if f"`{id_}`" not in told] == []


def test_a_former_id_is_understood_for_one_minor_release() -> None:
    """The one that says what has taken its place."""
    newest = next(iter(releases())).rpartition(".")[0]
    told = [text for version, text in releases().items() if version.startswith(f"{newest}.")]
    told += [path.read_text("utf-8") for path in fragments()]
    entries = tomllib.loads((CHECKOUT / "compat.toml").read_text("utf-8"))["patch"]
    former = [old for entry in entries for old in entry.get("was", ())]
    assert [old for old in former if f"`{old}`" not in "".join(told)] == []


MADE = """\
## [9.9.9] - 2030-01-02

### Added

- `two` is new.

### Fixed

- `one` works.
  Always.
"""


def test_a_release_takes_them_all(tmp_path: Path) -> None:
    """They come above what stood under Unreleased before, as one version."""
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(CHECKOUT / name, tmp_path)
    before = (tmp_path / "CHANGELOG.md").read_text()
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    shutil.copy(FOLDER / "template.md.jinja", folder)
    (folder / "one.fixed.md").write_text("`one` works.\nAlways.\n")
    (folder / "two.added.md").write_text("`two` is new.\n")
    release = ["--version", "9.9.9", "--date", "2030-01-02"]
    command = [sys.executable, "-m", "towncrier", "build", "--yes", *release]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    head, marker, rest = before.partition("<!-- releases -->\n")
    assert (tmp_path / "CHANGELOG.md").read_text() == f"{head}{marker}\n{MADE}{rest}"
    assert [path.name for path in folder.iterdir()] == ["template.md.jinja"]
