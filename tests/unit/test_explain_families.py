"""What languages, drivers and libraries print by themselves, in every form in which people paste it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.generate.failures import CATALOG
from tests.unit.test_explain import of
from vlmpatch.tools.explain import failures

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FAMILIES: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("explain_families.toml").read_text("utf-8")
)["families"]
BEGUN = 'Traceback (most recent call last):\n  File "/w/run.py", line 12, in <module>\n    main()\n'
FORMS = {
    "traceback": BEGUN + '  File "/w/quux.py", line 3, in frob\n    y = self.frob(x)\n{line}\n',
    "line": "{line}\n",
    "title": "[BUG] {line} when fine-tuning Qwen2.5-VL\nI run the script of the README on 8 A100.\n",
    "chinese": "微调 Qwen2-VL 时报错\n单卡正常，多卡训练时报错 {line} 请问怎么解决？\n",
    "quoted": "Fine-tuning stops\nAfter some steps I get `{line}` and have no idea why.\n",
}
# Of these a class is all that there is, and a person who only names it says too little.
VAGUE = {"AssertionError", "NotImplementedError", "StopIteration"}


def pages(text: str) -> set[str]:
    found = of(text)
    other = found.hit.failure if found.hit else found.ground
    return {other.id} if other else {each.id for each in found.perhaps}


def lines() -> Iterator[tuple[str, tuple[str, ...]]]:
    for family in FAMILIES:
        for line in family["lines"]:
            yield line, tuple(family["pages"])


@pytest.mark.parametrize(("line", "allowed"), list(lines()))
def test_it_leads_to_a_page_that_says_what_it_says(line: str, allowed: tuple[str, ...]) -> None:
    for form, text in FORMS.items():
        if line in VAGUE and form in ("chinese", "quoted"):
            continue
        assert pages(text.format(line=line)) & set(allowed), form


def test_the_pages_of_the_families_are_there() -> None:
    known = failures.every(CATALOG).known
    assert all(page in known for family in FAMILIES for page in family["pages"])
