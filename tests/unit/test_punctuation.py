"""Chinese sentences have Chinese punctuation, and nothing else has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generate import punctuation
from tests.lab import pages

COMMA, COLON, OPENS, CLOSES = "\uff0c", "\uff1a", "\uff08", "\uff09"


def test_all_that_is_written() -> None:
    narrow = [
        str(path.relative_to(pages.ROOT))
        for path, kind in punctuation.written()
        if kind(text := path.read_text("utf-8")) != text
    ]
    assert not narrow, f"python -m tests.generate.punctuation rewrites {', '.join(narrow)}"


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("开启检查点,但不用 LoRA:", f"开启检查点{COMMA}但不用 LoRA{COLON}"),
        ("`a`,`b` 与 1,024 个 (第二个) 之后", f"`a`{COMMA}`b` 与 1,024 个{OPENS}第二个{CLOSES}之后"),
        ("DDP(见[这里](docs/a.md))", f"DDP{OPENS}见[这里](docs/a.md){CLOSES}"),
        ("调用 f(x=1)。`甲,乙`, https://host/a:b", "调用 f(x=1)。`甲,乙`, https://host/a:b"),
        ("两个 rank(gloo)运行", f"两个 rank{OPENS}gloo{CLOSES}运行"),
        ("{a}:已有,{b:,}", f"{{a}}{COLON}已有{COMMA}{{b:,}}"),
        ("每个 Trainer:HF、TRL", f"每个 Trainer{COLON}HF、TRL"),
        ("调用 `generate()`:GRPO、RLOO", f"调用 `generate()`{COLON}GRPO、RLOO"),
        ("启用 vlmpatch,\n结束后", f"启用 vlmpatch{COMMA}\n结束后"),
        ("塔的 LoRA([F5](a.md#f5))", f"塔的 LoRA{OPENS}[F5](a.md#f5){CLOSES}"),
        ("没有说明的 `AssertionError`(`x`)", f"没有说明的 `AssertionError`{OPENS}`x`{CLOSES}"),
        ("见表(`a`):`b`", f"见表{OPENS}`a`{CLOSES}{COLON}`b`"),
        ("偏差 5 %,\n3.1 也是", f"偏差 5 %{COMMA}\n3.1 也是"),
        ("F34:Qwen2-VL (4.47.0;4.47.1)，第二", f"F34{COLON}Qwen2-VL{OPENS}4.47.0；4.47.1{CLOSES}{COMMA}第二"),
        ("调用 f(g, x)，其他 (PEFT)，", f"调用 f(g, x)，其他{OPENS}PEFT{CLOSES}，"),
        ("in English, all (of it): stays", "in English, all (of it): stays"),
        ("```bash\nrun a,b  # 甲,乙\n```", f"```bash\nrun a,b  # 甲{COMMA}乙\n```"),
        ("| 甲,乙 | x, y |", f"| 甲{COMMA}乙 | x, y |"),
    ],
)
def test_a_text(narrow: str, wide: str) -> None:
    assert punctuation.wide(narrow) == wide


def test_only_strings_of_a_program() -> None:
    source = 'call("一,二", 3)  # 注,释\n'
    assert punctuation.of_python(source) == f'call("一{COMMA}二", 3)  # 注,释\n'
    assert punctuation.of_toml('a = ["一,二", "x,y"]') == f'a = ["一{COMMA}二", "x,y"]'


@given(st.text(alphabet="中文,:;()?! `*ab1|\n{}[]", max_size=60))
def test_what_is_wide_stays(text: str) -> None:
    once = punctuation.wide(text)
    assert len(once) <= len(text)
    assert {c for c in once if c.isalnum()} == {c for c in text if c.isalnum()}
