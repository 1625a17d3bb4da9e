"""What a run of the tests leaves on record, and that it is of a commit that others can check out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab import record, table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_one" name="test_a" time="1.4"/>
<testcase classname="tests.unit.test_one.TestMore" name="test_b" time="0.4"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_one" name="test_c" time="0"><skipped message="later"/></testcase>
<testcase classname="tests.e2e.test_two" name="test_d" time="60"/>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_file() -> None:
    found = record.read(REPORT, "abc", "2026-01-02")
    assert found["tests/unit/test_one.py"] == record.Ran("abc", "2026-01-02", 1, 1, 1, 2)
    assert found["tests/e2e/test_two.py"].seconds == 60


def test_parts_are_added_and_files_that_are_gone_dropped(tmp_path: Path) -> None:
    store = tmp_path / "tests.csv"
    for name in ("tests/unit/test_one.py", "tests/e2e/test_two.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.touch()
    found = record.read(REPORT, "abc", "2026-01-02")
    record.write(found, tmp_path, store)
    (tmp_path / "tests/unit/test_one.py").unlink()
    again = found["tests/e2e/test_two.py"]._replace(commit="def")
    record.write({"tests/e2e/test_two.py": again}, tmp_path, store)
    assert record.known(store) == {"tests/e2e/test_two.py": again}


def test_a_count_that_is_no_number(tmp_path: Path) -> None:
    store = tmp_path / "tests.csv"
    store.write_text(f"{','.join(record.COLUMNS)}\ntests/a.py,abc,2026-01-02,many,0,0,1\n")
    with pytest.raises(table.Broken, match=r"tests.csv, line 2: .*'many'.*\(git checkout .*make test-all"):
        record.known(store)


def test_what_differs_from_the_commit_is_seen(tmp_path: Path) -> None:
    store, code = tmp_path / "tests.csv", tmp_path / "code.py"
    who = ("-c", "user.name=another", "-c", "user.email=another@example.org")
    store.write_text("a\n")
    code.write_text("1\n")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    store.write_text("b\n")
    assert record.changed(tmp_path, store) == []
    code.write_text("2\n")
    assert record.changed(tmp_path, store) == ["code.py"]
