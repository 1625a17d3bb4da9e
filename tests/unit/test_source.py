from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import io
import sys
import tokenize
import zipfile
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch.gate import scanner
from vlmpatch.gate.source import (
    Code,
    Function,
    NoSource,
    Unrecognised,
    digest,
    locate,
    of_file,
    of_module,
)

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
    found = Code("m", "m.py", SOURCE)
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
    monkeypatch.setattr(scanner, "_parsed", lambda *args: pytest.fail("parsed whole"))
    head = "class Thing(\n    One,\n    Two,  # two\n):\n"
    source = head + "    kind = 1\n\n    def f(self, a=(1, 2)):\n        pass\n"
    found = Code("m", "m.py", source)
    assert found.class_names("Thing") == frozenset({"kind", "f"})
    function = found.function("Thing.f")
    assert function is not None
    assert (function.parameters, function.defaults) == (("self", "a"), {"a": "(1, 2)"})


def test_digest_ignores_words_and_layout() -> None:
    other = SOURCE.replace("Says nothing.", "Says a lot,\n    on lines.").replace("  # a comment", "")
    one, two = (Code("m", "m.py", text).function("plain") for text in (SOURCE, other))
    assert one is not None
    assert two is not None
    assert one.digest == two.digest


def test_digest_sees_code() -> None:
    changed = SOURCE.replace("return x ", "return y ")
    one, two = (Code("m", "m.py", text).function("plain") for text in (SOURCE, changed))
    assert one is not None
    assert two is not None
    assert one.digest != two.digest


def test_digest_is_the_same_on_every_python() -> None:
    late = Code("m", "m.py", SOURCE).function("Thing.late")
    assert late is not None
    assert late.digest == "d51a902bcfa4"


@given(st.lists(st.sampled_from(["    x = 1", "", "    # words", "    if x:", "        y = [1,", "  2]"])))
def test_digest_of_any_layout_is_text(lines: list[str]) -> None:
    # A fragment that does not tokenize is an error of the caller's; nothing else may escape.
    with contextlib.suppress(SyntaxError, tokenize.TokenError):
        assert len(digest("\n".join(["def f():", *lines, "    pass"]))) == 12


def test_locate_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "quiet" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "quiet" / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "__init__.py").write_text("")
    (package / "leaf.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert locate("quiet.inner.leaf") == str(package / "leaf.py")
    assert locate("quiet.inner") == str(package / "__init__.py")
    assert locate("quiet.absent") is None
    assert locate("absent_package.x") is None
    assert "quiet" not in sys.modules


def test_an_editable_install_has_a_finder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainers").mkdir()
    for name in ("__init__.py", "trainers/__init__.py", "trainers/sft.py"):
        (tmp_path / name).write_text("raise RuntimeError('imported')")

    class Finder:
        @classmethod
        def find_spec(cls, name: str, path: object) -> ModuleSpec | None:
            here, places = str(tmp_path / "__init__.py"), [str(tmp_path)]
            found = spec_from_file_location(name, here, submodule_search_locations=places)
            return found if name == "ed" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    Finder.__module__ = None  # type: ignore[assignment]
    assert locate("ed") is None
    Finder.__module__ = "elsewhere"
    assert locate("ed.trainers.sft") is None, "nobody but setuptools is asked: a finder may do anything"
    Finder.__module__ = "__editable___ed_0_29_0_finder"
    assert locate("ed.trainers.sft") == str(tmp_path / "trainers" / "sft.py")
    assert locate("ed") == str(tmp_path / "__init__.py")
    assert locate("ed.absent") is None
    assert locate("other") is None


def test_the_source_of_a_module_in_a_zip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("in_an_archive/__init__.py", "")
        made.writestr("in_an_archive/part.py", SOURCE)
    monkeypatch.syspath_prepend(str(archive))
    module = importlib.import_module("in_an_archive.part")
    code = of_module(module)
    assert code.function("plain") is not None
    assert code.path == str(archive / "in_an_archive" / "part.py")
    monkeypatch.setattr(module, "__loader__", None)
    with pytest.raises(NoSource, match=r"part\.py"):
        of_module(module)


def test_unreadable_source(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    with pytest.raises(Unrecognised, match=r"broken\.py"):
        of_file("broken", str(broken)).function("f")
    broken.write_bytes(b"name = 'K\xf6ln'\n")
    with pytest.raises(NoSource, match=r"broken\.py"):
        of_file("broken", str(broken))
    with pytest.raises(Unrecognised, match="no source file"):
        of_module(sys)


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
    found = scanner.Scan(source).definition("wanted")
    assert found is not None
    assert found.partition("  #")[0] == f"def wanted(x):\n{body}".partition("  #")[0]


@pytest.mark.parametrize(
    ("definition", "defaults"),
    [
        ("def f(a=':', b={1: 2}):  # so\n    return 1\n", {"a": "':'", "b": "{1: 2}"}),
        ("def f(a=')', *, b=lambda x: x) -> dict[str, int]:\n    pass\n", {"a": "')'", "b": "lambda x: x"}),
        ("def f(a=1): return a\n", {"a": "1"}),
        ("async def f(\n    a=1,  # the first:\n    b='(',\n):\n    pass\n", {"a": "1", "b": "'('"}),
    ],
)
def test_parameters_are_read_from_the_head(definition: str, defaults: dict[str, str]) -> None:
    function = Function(definition)
    assert (function.defaults, function.parameters) == (defaults, tuple(defaults))


def test_of_a_long_body_the_head_alone_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = ast.parse

    def noted(text: str) -> ast.Module:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(ast, "parse", noted)
    assert Function("def f(a, b):\n" + "    a = b\n" * 100).parameters == ("a", "b")
    assert parsed == ["def f(a, b): ..."]


def test_triple_quotes_that_are_none_are_seen_through() -> None:
    source = "class A:\n    quotes = \"'''\"\n    def f(self): ...\n\nclass B:\n    def g(self): ...\n"
    found = scanner.Scan(source)
    assert found.class_names("A") == {"quotes", "f"}
    assert found.class_names("B") == {"g"}
    assert found.definition("B.g") == "def g(self): ..."
    assert found.definition("A.g") is None


@pytest.mark.parametrize("body", ["\n  x = 1\n", " x = 1\n", "\n    def f(self): ...\n    x = 1\n"])
def test_names_of_a_class_however_its_body_stands(body: str) -> None:
    names = scanner.Scan(f"class A:{body}\nclass B: ...\n").class_names("A")
    assert names is not None
    assert names - {"f"} == {"x"}


def test_a_digest_is_that_of_the_tokens() -> None:
    source = (
        Path(digest.__code__.co_filename).read_text(encoding="utf-8")
        + SOURCE
        + 'x = (\n    "kept"\n) + \\\n    1; "y"\n'
    )
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT}
    told = [token for token in tokens if token.type not in layout]
    before = [tokenize.NEWLINE, *(token.type for token in told)]
    kept = [
        token.string
        for token, previous in zip(told, before, strict=False)
        if (token.type, previous) != (tokenize.STRING, tokenize.NEWLINE)
    ]
    text = "".join("".join(kept).split()).replace("{{", "{").replace("}}", "}")
    assert digest(source) == hashlib.sha256(text.encode()).hexdigest()[:12]
