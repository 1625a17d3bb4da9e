"""Both languages say everything."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

from vlmpatch.catalog.model import State
from vlmpatch.catalog.read import SEVERITIES
from vlmpatch.engine.locked import KINDS
from vlmpatch.tools import lock
from vlmpatch.tools.explain import answer_page
from vlmpatch.tools.lint import unread
from vlmpatch.tools.view import language as words

TOOLS = Path(words.__file__).parents[1]


def sentences() -> set[str]:
    """Every literal that a view says, and those that are said by name."""
    found = {"error", "warning", "note", "applies", "perhaps", "not here"}
    found.update((answer_page._NO_TRACE, answer_page._STILL))
    found.update(unread.SENTENCES, SEVERITIES, (state.value for state in State))
    found.update(lock._HEADINGS.values())
    for path in TOOLS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func)
            said = node.args[0]
            if name in ("say", "around.say", "self.say") and isinstance(said, ast.Constant):
                found.add(str(said.value))
            elif name == "verb" and isinstance(node.args[1], ast.Constant):
                found.add(str(node.args[1].value))
    return found


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("english", sorted(sentences()))
def test_each_sentence_is_there_in_chinese(english: str) -> None:
    assert fields(words._chinese()[english]) == fields(english)


def test_no_translation_is_left_of_a_sentence_that_is_gone() -> None:
    trees = [ast.parse(path.read_text()) for path in TOOLS.rglob("*.py")]
    written = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    written |= {*SEVERITIES, *(state.value for state in State), *KINDS.values()}
    assert sorted(words._chinese().keys() - written) == []


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LC_MESSAGES": "zh_TW"}, "zh"),
        ({}, "en"),
    ],
)
def test_the_locale_decides(environ: dict[str, str], language: str) -> None:
    assert words.language(environ) == language
