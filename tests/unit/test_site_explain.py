"""What a page says of a pasted text is what ``python -m vlmpatch explain`` says of it.

Both read the logs of ``tests/logs`` in the forms that people paste them in. Node runs the page's half.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.notebooks import FORMS
from tests.generate.failures import CATALOG
from tests.unit.test_explain import READY
from tests.unit.test_explain_forms import CUT, WHOLE
from tests.unit.test_explain_grounds import KINDS
from tests.unit.test_explain_notebooks import AROUND, HEAD, LIBRARY, LINES, alone
from tests.unit.test_explain_told import MAYBE, TOLD, UNRELATED
from tests.unit.test_logs import LOGS
from vlmpatch.tools.explain import answer_page, answers, logs
from vlmpatch.tools.view.language import Words
from website import symptoms

NODE = shutil.which("node")
SCRIPT = Path(symptoms.__file__).parent / "assets" / "explain.js"
RUN = """
require(process.argv[1]);
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(given.texts.map((text) => globalThis.vlmpatchExplain(text, given.known))));
"""
SAME = (
    "failure",
    "kind",
    "instead",
    "ground",
    "perhaps",
    "cut",
    "seen",
    "line",
    "ranks",
    "versions",
    "active",
)
OTHERS = (
    "",
    "epoch 1\n{'loss': 0.3}\n",
    "vlmpatch watch: 3 parameters have no gradient: python -m vlmpatch explain F5",
    "Some ranks of the group are late",
    "Saving a checkpoint hangs with DeepSpeed",
    "A run hangs\nIt is a fine-tune of Mixtral, a mixture of experts,\nby DeepSpeed ZeRO-3.",
    'With ZeRO-3 it saves, and hangs:\n  File "/x/engine.py", line 9 in save_checkpoint',
    "zero2: 图文混合训练时卡住",
    "DeepSpeed first, FSDP named only\nRuntimeError: 'weight' must be 2-D",
    "zero2 works, and zero3 does not\nThe size of tensor a (0) must match the size of tensor b (7)",
    "runs: distributed_type: FSDP, deepspeed named\nRuntimeError: 'weight' must be 2-D",
    "{'loss': 1}\n" + READY + "\n{'loss': 1}\n{'loss': 2}\n{'loss': 3}",
    "The size of tensor a (61) must match the size of tensor b (62) at non-singleton dimension 3",
    "The size of tensor a (123456789012345678) must match the size of tensor b (123456789012345679) at",
    "错误:CUDA out of memory。RuntimeError:Expected to mark a variable ready only once",
    'Traceback (most recent call last):\n  File "/x/train.py", line 3, in <module>\n    main()',
)


def pasted(raw: bytes) -> str | None:
    """``raw`` where it is text that a person can paste."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text or "\ufeff" in text or len(raw) >= logs.ENDS else text


def texts() -> list[str]:
    printed = [log.read_text("utf-8") for log in LOGS]
    forms = [form(text) for text in printed for form in WHOLE.values()]
    written = [*(text for text, _ in (*TOLD, *MAYBE, *KINDS)), *UNRELATED]
    cuts = [cut(text) for text in printed for cut, _ in CUT.values()]
    last = LIBRARY.format("quux/frob.py", 44, "step", "raise quux")
    traced = [
        *map(alone, printed),
        *(text for text, _ in KINDS),
        *(f"{HEAD}{last}{line}" for line, _ in LINES),
    ]
    cuts += [form(text, AROUND) for text in traced for form in FORMS.values()]
    return [*OTHERS, *written, *printed, *cuts, *filter(None, map(pasted, forms))]


def said(text: str) -> dict[str, Any]:
    """The answer of the command."""
    found = answer_page.data(
        answers.answer(io.BytesIO(text.encode()), CATALOG, Words("en"), None), Words("en")
    )
    return {name: found[name] for name in SAME} | {"patches": sorted(each["id"] for each in found["patches"])}


@pytest.mark.skipif(
    NODE is None, reason="node is not installed: what the page says of a text was not compared"
)
def test_a_page_says_what_the_command_says() -> None:
    given = texts()
    assert len(given) > 200
    sent = json.dumps({"texts": given, "known": symptoms.known()})
    command = [NODE or "", "-e", RUN, str(SCRIPT)]
    with ThreadPoolExecutor(1) as beside:  # each half takes minutes
        ran = beside.submit(subprocess.run, command, input=sent, capture_output=True, text=True, check=True)
        wanted = [said(text) for text in given]
    answers = json.loads(ran.result().stdout)
    assert len(answers) == len(given)
    for text, answer, said_here in zip(given, answers, wanted, strict=True):
        answer["patches"].sort()
        assert {name: answer[name] for name in (*SAME, "patches")} == said_here, text[-400:]


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        (re.compile(r"[\w.-]+\d"), r"[\p{L}\p{N}_.-]+[\p{Nd}]"),
        (re.compile(rb"\s[^\s]."), r"[ \t\n\r\f\v][^ \t\n\r\f\v][^\n]"),
        (re.compile(r"[.\"]\""), r'[."]"'),
        (re.compile(r"\[[\[>\]-]\]\\n"), r"\[[\[>\]-]\]\\n"),
    ],
)
def test_an_expression_is_written_for_javascript(expression: re.Pattern[Any], written: str) -> None:
    assert symptoms.javascript(expression) == written
