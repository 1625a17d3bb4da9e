"""The lab's stacks to the version and the digest: what is on record is what the stacks ask for."""

from __future__ import annotations

import datetime
import platform
import re
from pathlib import Path
from typing import Any

import pytest

from tests.lab import envs, pins

RECORDS = sorted(envs.PINS.glob("*.txt"))
HEAD = re.compile(r"# Python 3\.\d+\.\d+, \w+ \w+; nothing in it was published after \d{4}-\d\d-\d\d\.")
LINE = re.compile(r"([a-z0-9-]+)==([\w.+!]+) --hash=sha256:[0-9a-f]{64}")


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_of_its_stack(record: Path) -> None:
    head, *lines = record.read_text("utf-8").splitlines()
    assert HEAD.fullmatch(head)
    matches = [LINE.fullmatch(line) for line in lines]
    held = {match[1]: match[2].partition("+")[0] for match in matches if match}
    assert len(held) == len(lines)
    stack = envs.read_stacks()[record.stem]
    asked = dict(pin.split("==") for pin in (stack.torch, *stack.packages, *stack.no_deps) if "==" in pin)
    asked = {name.partition("[")[0].lower().replace("_", "-"): version for name, version in asked.items()}
    assert {name: held.get(name) for name in asked} == asked, f"python -m tests.lab.pins {stack.name}"


def test_the_stacks_of_make_test_are_on_record() -> None:
    makefile = (envs.HERE.parents[1] / "Makefile").read_text("utf-8")
    (named,) = re.findall(r"^STACKS = (.*)$", makefile, re.M)
    assert set(named.split()) <= {record.stem for record in RECORDS}


TAKER = pins.Taker(platform.python_version(), ("cp311-cp311-linux_x86_64", "py3-none-any"))


def package(name: str, *files: str, source: str = "-") -> dict[str, Any]:
    day = datetime.datetime(2026, 3, 4, tzinfo=datetime.timezone.utc)
    made = [
        {"url": f"https://x.example/{file}", "hashes": {"sha256": file}, "upload-time": day} for file in files
    ]
    return {"name": name, "version": "1.0", "wheels": made, "sdist": {"hashes": {"sha256": source}}}


def test_the_file_of_this_machine_is_chosen() -> None:
    here, anywhere = "one-1.0-cp311-cp311-linux_x86_64.whl", "one-1.0-py3-none-any.whl"
    one = package("one", "one-1.0-cp27-cp27m-win32.whl", anywhere, here)
    said = pins.text([one, package("two", source="s")], TAKER)
    head, *lines = said.splitlines()
    assert head.endswith("; nothing in it was published after 2026-03-04.")
    assert lines == [f"one==1.0 --hash=sha256:{here}", "two==1.0 --hash=sha256:s"]


def test_a_stack_is_made_of_what_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "PINS", tmp_path)
    monkeypatch.setenv("VLMPATCH_LAB", str(tmp_path))
    stack = envs.read_stacks()["tf523-ds0198"]
    assert envs._pinned(stack) == []
    (tmp_path / f"{stack.name}.txt").write_text(
        pins.text([package("torch"), package("one", source="s")], TAKER)
    )
    _, path = envs._pinned(stack)
    assert Path(path).read_text() == "one==1.0\n"
    (tmp_path / f"{stack.name}.txt").write_text("# Python 2.7.18, linux x86_64; of long ago\none==1.0\n")
    assert envs._pinned(stack) == []
