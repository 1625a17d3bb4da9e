"""What the engine, the gates and patches say has its Chinese, and no Chinese view is left in English."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generate import sentences, untranslated
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.read import read
from vlmpatch.tools import cli
from vlmpatch.tools.view import reasons
from vlmpatch.tools.view.language import Words

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("english", sorted(set(sentences.of_others())))
def test_each_is_there_in_chinese(english: str) -> None:
    assert english in reasons.table()


def test_what_is_translated_is_one_clause() -> None:
    """A field of two would take the end of one and the beginning of the next."""
    assert [english for english in reasons.table() if len(reasons.SPLIT.split(english)) > 1] == []


def test_fields_are_those_of_the_english() -> None:
    for english, chinese in reasons.table().items():
        count = english.count("{}")
        numbered = sorted(map(int, re.findall(r"\{(\d)\}", chinese)))
        assert numbered == list(range(count)) or (count == chinese.count("{}") <= 1), english


def test_no_translation_is_left_of_what_nobody_says() -> None:
    said = {*sentences.of_others(), *(clause for _, clause in sentences.of_patches())}
    composed = {  # of words and a list: installation.sentence, environment.suggestion; by the system
        *("changed since they were installed: {}", "missing: {}", "not from the wheel: {}"),
        *("Did you mean {}?", "No such file or directory", "Permission denied"),
    }
    assert sorted(reasons.table().keys() - said - composed) == []


def test_a_patchs_words_may_wait_for_their_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a release: a contribution does not need it."""
    before = set(untranslated.owed())
    rest = {each: said for each, said in reasons.table().items() if each != "there is no DynamicCache"}
    monkeypatch.setattr(reasons, "table", lambda: rest)
    more = set(untranslated.owed()) - before
    assert more == {"patches/transformers/cache_in_recompute.py: there is no DynamicCache"}


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (
            "peft 0.18; will be applied when torch.x is imported; no verified versions on record",
            "peft 0.18；导入 torch.x 时生效；没有已验证版本的记录",
        ),
        ("deepspeed 0.18.2 is not >=1,<2.dev0", "deepspeed 0.18.2 不在 >=1,<2.dev0 内"),
        (
            "Did you mean 'VLMPATCH_LOG'? It has no effect; there are VLMPATCH_DISABLE, VLMPATCH_LOG",
            "是否想写 'VLMPATCH_LOG'？它不起作用；可用的有 VLMPATCH_DISABLE, VLMPATCH_LOG",
        ),
        (
            "/a/b.py has no Trainer.save; it will stay off",
            "/a/b.py 没有 Trainer.save；它不会启用",
        ),
        ("ValueError: a word of the user's own; and more", "ValueError: a word of the user's own; and more"),
    ],
)
def test_clause_by_clause(english: str, chinese: str) -> None:
    assert Words("zh").told(english) == chinese
    assert Words("en").told(english) == english


@given(st.text(max_size=80))
def test_any_text_passes(text: str) -> None:
    assert isinstance(reasons.chinese(text), str)


# A name, a path, a command, code in backticks and what a user or a package wrote are no sentences.
_CODE = re.compile(r"`[^`]*`|(?:python -m|kubectl) .*|pip install .*|\S*[/_.=<>]\S*|'[^']*'|\"[^\"]*\"")
_ENGLISH = re.compile(r"\b[A-Za-z][a-z']+(?: [a-z][a-z']+){2,}\b")


VERBS = ("doctor", "explain", "verify", "list", "retire", "run", "lock", "new", "schema")


@pytest.mark.parametrize(
    "asked",
    [
        ["doctor", "--all"],
        ["doctor", "--markdown"],
        ["doctor", "--command", "torchrun train.py --use_lora true --deepspeed z3.json --ddp_timeout 100000"],
        ["doctor", "--model", str(CHECKOUT / "tests" / "golden" / "model")],
        ["list"],
        ["retire"],
        ["--help"],
        *([verb, "--help"] for verb in VERBS),
        ["explain", "vision-input-grad"],
        ["explain", "F3"],
        ["explain", "L05"],
        ["run", "no-such-command-at-all"],
        ["run"],
        ["verify", "--only", "nosuch"],
        ["verify"],
        ["lockk"],
        ["schema", "nonsense"],
        ["doctor", "--nonsense"],
        ["doctor", "--model"],
        ["doctor", "--json", "--all"],
        ["doctor", "--json=1"],
        ["doctor", "--m", "x"],
        ["new", "an-id"],
        ["lock", "--diff", "--file", "gone.lock"],
        ["lock", "--diff", "--file", str(CHECKOUT / "tests" / "golden" / "model" / "config.json")],
    ],
    ids=" ".join,
)
def test_nothing_in_a_chinese_view_is_english(
    asked: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "1000")
    for name, value in (("LGO", "info"), ("LOG", "loud"), ("DISABLE", "nosuch"), ("STRICT", "maybe")):
        monkeypatch.setenv(f"VLMPATCH_{name}", value)
    with contextlib.suppress(SystemExit):
        cli.main(asked)
    shown = "".join(capsys.readouterr())
    assert re.search("[\u4e00-\u9fff]", shown)
    for entry in read(default_path()).entries.values():
        if entry.summary_zh == entry.summary:  # a contribution need not wait for its Chinese; a release does
            shown = shown.replace(entry.summary, "")
        assert entry.summary not in shown
    assert [
        (line, found) for line in shown.splitlines() for found in _ENGLISH.findall(_CODE.sub("", line))
    ] == []
