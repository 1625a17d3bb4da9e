"""Doctor's findings where others show them: beside the lines of a file in a CI service, and in an issue."""

from __future__ import annotations

import json
import re
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from vlmpatch.catalog.model import State, Status
from vlmpatch.tools import cli
from vlmpatch.tools.doctor import views
from vlmpatch.tools.doctor.examination import Findings
from vlmpatch.tools.doctor.packages import Package
from vlmpatch.tools.doctor.remarks import remarks
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.view import ci
from vlmpatch.tools.view.language import Words

SCRIPT = "torchrun train.py --deepspeed z3.json \\\n  --ddp_timeout 100000\n"


def found(evidence: str, severity: str = "warning") -> Finding:
    return Finding("L09", severity, "a title", evidence, "a fix", "python -m vlmpatch explain F11")


def test_a_finding_stands_at_its_line_of_the_file_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir()
    for name in ("train.sh", "inner.sh"):
        (tmp_path / "scripts" / name).write_text(SCRIPT)
    named = ("scripts/train.sh", "", "torchrun x.py")
    (own, beside, unknown, nowhere) = remarks(
        [
            found("train.sh:2: ddp_timeout = 100000"),
            found("inner.sh:1: x"),
            found("/else/where.py:48"),
            found("the command: ddp_timeout = 1"),
        ],
        named,
    )
    assert (own.file, own.line, own.code) == ("scripts/train.sh", 2, "L09")
    assert (beside.file, beside.line) == ("scripts/inner.sh", 1)
    assert (unknown.file, unknown.line) == ("/else/where.py", 48)
    assert nowhere.file == ""
    assert own.text.splitlines() == [
        *("a title", "train.sh:2: ddp_timeout = 100000"),
        *("a fix", "python -m vlmpatch explain F11"),
    ]


def test_in_each_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(SCRIPT)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))

    def printed(form: str) -> str:
        assert cli.main(["doctor", "--command", "train.sh", "--annotations", form, "--lang", "en"]) == 1
        return capsys.readouterr().out

    github = printed("github").splitlines()
    assert github[0].startswith("::error title=vlmpatch D01::There is no torch here")
    assert "::notice file=train.sh,line=1,title=vlmpatch L09::A long time-out does not" in "\n".join(github)
    assert "vlmpatch: error: vlmpatch D01: There is no torch" in printed("plain")
    assert "train.sh:1:1: note: vlmpatch L09: A long time-out" in printed("plain")
    assert "##vso[task.logissue type=error]vlmpatch D01: There is" in printed("azure")
    assert {each["location"]["path"] for each in json.loads(printed("gitlab"))} == {".", "train.sh"}
    (run,) = json.loads(printed("sarif"))["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} == rules
    places = {
        result["ruleId"]: [place["physicalLocation"] for place in result.get("locations", [])]
        for result in run["results"]
    }
    assert places["D01"] == []
    where = {"artifactLocation": {"uri": "train.sh"}, "region": {"startLine": 1}}
    assert places["L09"] == [where]
    assert set(ci.FORMS) == {"github", "gitlab", "azure", "plain", "sarif"}


@given(st.text())
def test_a_path_in_sarif_is_a_uri(path: str) -> None:
    assert urllib.parse.unquote(ci._uri(path), errors="strict") == path
    assert re.fullmatch(r"[\x21-\x7e]*", ci._uri(path))


WORDS = st.text("ab `|*_<>[]()\\&~#!\n-", max_size=30)


def inlines(text: str) -> list[Any]:
    tokens = MarkdownIt().enable("table").parse(text)
    return [token for token in tokens if token.type == "inline"]


@given(title=WORDS, evidence=WORDS, fix=WORDS, folder=WORDS, reason=WORDS)
def test_whatever_a_finding_holds_markdown_shows_it(
    title: str, evidence: str, fix: str, folder: str, reason: str
) -> None:
    """Backticks, pipes and tags of a user's command line end no code, no cell and no list."""
    findings = Findings(
        {"torch": Package("torch", "2.8.0", f"x{folder}", False, (), "")},
        (Status("a-patch", State.ARMED, f"a {reason} z"),),
        (Finding("L09", "warning", f"a {title} z", f"a {evidence} z", f"a {fix.strip()} z"),),
        {},
    )
    shown = inlines(views.markdown(findings, Words("en")))
    code = [child.content for token in shown for child in token.children if child.type == "code_inline"]
    wanted = [f"a {evidence} z", *filter(None, f"a {fix.strip()} z".splitlines())]
    assert code[: len(wanted)] == [" ".join(text.split()) for text in wanted]
    plain = [text(token) for token in shown]
    assert any(" ".join(f"a {title} z".split()) in line for line in plain)
    assert " ".join(f"x{folder}".split()) in plain
    assert f"a-patch armed: {' '.join(f'a {reason} z'.split())}" in plain


def text(token: Any) -> str:
    """What a reader sees."""
    kinds = {"softbreak": " ", "hardbreak": " "}
    return "".join(kinds.get(child.type, child.content) for child in token.children)
