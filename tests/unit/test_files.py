"""What doctor is told to read may be anything that has a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vlmpatch.support import files
from vlmpatch.tools.doctor import remote
from vlmpatch.tools.lint import configuration, data, model, unread
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.unread import Unread

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)


@pytest.fixture(params=["fifo", "endless"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file that never ends to be read."""
    path = tmp_path / "config.json"
    if request.param == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


def test_what_is_no_regular_file_is_not_read(odd: Path) -> None:
    with pytest.raises(OSError, match="is no regular file"):
        files.read(str(odd))
    assert "is no regular file" in str(model.read(str(odd.parent)))
    launch = LaunchConfig()
    configuration.from_file(str(odd), launch)
    assert launch.problems == [Unread(str(odd), unread.NO_FILE)]
    assert data.count(str(odd)) is None
    assert remote.traits(str(odd)) == []


def test_what_is_too_large_is_not_read_or_cut(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_text("x" * 100)
    assert files.read(str(path), 100) == "x" * 100
    with pytest.raises(OSError, match="larger than 99 bytes"):
        files.read(str(path), 99)
    assert files.read(str(path), 9, cut=True) == "x" * 9


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]\n"])
def test_aliases_are_not_expanded_without_end(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.yaml"
    path.write_text(text)
    launch = LaunchConfig()
    configuration.from_file(str(path), launch)
    assert launch.problems == [Unread(str(path), unread.ALIASES)]


def test_a_few_aliases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ds.yaml"
    path.write_text("base: &base {stage: 3}\nzero_optimization: *base\n")
    launch = LaunchConfig()
    configuration.from_file(str(path), launch)
    assert launch.problems == []
