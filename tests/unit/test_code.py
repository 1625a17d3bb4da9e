from __future__ import annotations

import contextlib
import sys
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch import code, scan

SOURCE = '''
import os as system
try:
    from a import b
except ImportError:
    b = None

def plain(x, /, y=1, *rest, z: int = 2, **more):
    """Says nothing."""
    return x  # a comment

class Thing:
    kind = "thing"

    @property
    def late(self):
        return f"{self.kind!r:>{10}} {{literal}}"
'''


def test_names_and_functions() -> None:
    found = code.Code("m", "m.py", SOURCE)
    assert found.names == {"system", "b", "plain", "Thing"}
    plain = found.function("plain")
    assert plain is not None
    assert plain.parameters == ("x", "y", "rest", "z", "more")
    assert plain.defaults == {"y": "1", "z": "2"}
    assert "return x" in plain
    assert found.class_names("Thing") == frozenset({"kind", "late"})
    assert found.function("Thing") is None
    assert found.function("Thing.absent") is None
    assert found.class_names("plain") is None


def test_a_class_whose_bases_stand_on_lines_is_not_parsed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_parsed", lambda *args: pytest.fail("parsed whole"))
    head = "class Thing(\n    One,\n    Two,  # two\n):\n"
    source = head + "    kind = 1\n\n    def f(self, a=(1, 2)):\n        pass\n"
    found = code.Code("m", "m.py", source)
    assert found.class_names("Thing") == frozenset({"kind", "f"})
    function = found.function("Thing.f")
    assert function is not None
    assert (function.parameters, function.defaults) == (("self", "a"), {"a": "(1, 2)"})


def test_digest_ignores_words_and_layout() -> None:
    other = SOURCE.replace("Says nothing.", "Says a lot,\n    on lines.").replace("  # a comment", "")
    one, two = (code.Code("m", "m.py", text).function("plain") for text in (SOURCE, other))
    assert one is not None
    assert two is not None
    assert one.digest == two.digest


def test_digest_sees_code() -> None:
    changed = SOURCE.replace("return x ", "return y ")
    one, two = (code.Code("m", "m.py", text).function("plain") for text in (SOURCE, changed))
    assert one is not None
    assert two is not None
    assert one.digest != two.digest


def test_digest_is_the_same_on_every_python() -> None:
    late = code.Code("m", "m.py", SOURCE).function("Thing.late")
    assert late is not None
    assert late.digest == "d51a902bcfa4"


@given(st.lists(st.sampled_from(["    x = 1", "", "    # words", "    if x:", "        y = [1,", "  2]"])))
def test_digest_of_any_layout_is_text(lines: list[str]) -> None:
    # A fragment that does not tokenize is an error of the caller's; nothing else may escape.
    with contextlib.suppress(SyntaxError, tokenize.TokenError):
        assert len(code.digest("\n".join(["def f():", *lines, "    pass"]))) == 12


def test_locate_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "quiet" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "quiet" / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "__init__.py").write_text("")
    (package / "leaf.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert code.locate("quiet.inner.leaf") == str(package / "leaf.py")
    assert code.locate("quiet.inner") == str(package / "__init__.py")
    assert code.locate("quiet.absent") is None
    assert code.locate("absent_package.x") is None
    assert "quiet" not in sys.modules


def test_unreadable_source(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    with pytest.raises(code.Unrecognised, match=r"broken\.py"):
        code.of_file("broken", str(broken)).function("f")
    broken.write_bytes(b"name = 'K\xf6ln'\n")
    with pytest.raises(code.NoSource, match=r"broken\.py"):
        code.of_file("broken", str(broken))
    with pytest.raises(code.Unrecognised, match="no source file"):
        code.of_module(sys)


@pytest.mark.parametrize(
    "body",
    [
        "    return call(\nargument,\n    )",
        "    return '''\ntext that stands at the edge\n'''",
        '    """Says ( and\nnothing else."""\n    return [\n1]',
        "    return 1  # said (",
        "    pass",
    ],
)
def test_where_a_definition_ends(body: str) -> None:
    source = f"def wanted(x):\n{body}\n\n\n# of the next\ndef other():\n    return 2\n"
    found = scan.definition(source, "wanted")
    assert found is not None
    assert found.partition("  #")[0] == f"def wanted(x):\n{body}".partition("  #")[0]
