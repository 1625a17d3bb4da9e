"""Chinese text with Chinese punctuation: a comma beside a Chinese character is as wide as the character.

    python -m tests.generate.punctuation

rewrites what is written by hand; ``make generate`` makes the pages from it, and rewrites what stands between.
Code, links, tags and fields of a sentence stay as they are; the comments in a block of code are text.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.lab import pages

WIDE = dict(zip(",:;?!()", "\uff0c\uff1a\uff1b\uff1f\uff01\uff08\uff09", strict=True))
CHINESE = re.compile(r"[\u4e00-\u9fff\u3001\u3002\u300c\u300d]")
# What is no text, in Markdown and in a sentence with fields; each counts as a word of another script.
APART = re.compile(
    r"^ *```.*?^ *```[^\n]*$|``.+?``|`[^`\n]*`|(?<=\])\([^)\s]*\)|<[^>\n]*>|https?://[^\s)\u4e00-\u9fff]*|\{[^{}\n]*\}",
    re.MULTILINE | re.DOTALL,
)
# At its end, a name of code with its arguments: ``tensor.fill_(0)``, ``generate()``, ``f(x=1)``, ``f(g, x)``.
CALL = re.compile(r"([A-Za-z]\w*[._][\w.]*\([^()]*|[A-Za-z]\w*\(([^()]*[=_.][^()]*|\w(, \w)*)?)\)$")
COMMENT = re.compile(r"(?<=# ).*[\u4e00-\u9fff].*$", re.MULTILINE)
WORD = "\ue000"  # stands for what is apart: a character of no script
LITERAL = re.compile(r'"""(?:.|\n)*?"""|' r"'''(?:.|\n)*?'''|" r'"(?:[^"\\\n]|\\.)*"')
# What logs say is matched as it was written; pages and expected outputs are made.
OTHERS = re.compile(r"^(vlmpatch/tools/explain/|tests/golden/|docs/zh-CN/(reference|figures)/|tests/unit/)")


def wide(text: str) -> str:
    """``text`` with the punctuation of its Chinese sentences.

    Args:
        text: of Markdown, or a sentence with ``{fields}``; what is in English stays.
    """
    if not CHINESE.search(text):
        return text
    kept: list[str] = []

    def put_aside(found: re.Match[str]) -> str:
        apart = found.group()
        kept.append(COMMENT.sub(lambda said: wide(said.group()), apart) if "```" in apart else apart)
        return WORD

    told = iter(kept)
    blocks = re.split(r"(\n\s*\n|\|)", APART.sub(put_aside, text))
    return re.sub(WORD, lambda _: next(told), "".join(_block(block) for block in blocks))


def _block(text: str) -> str:
    """A paragraph, or a cell of a table, in which brackets belong together."""
    if not CHINESE.search(text):
        return text
    changed = {at for at, char in enumerate(text) if char in ",:;?!" and _in_chinese(text, at)}
    for pair in _pairs(text):
        if _around_chinese(text, *pair):
            changed |= {*pair}
    marked = "".join(f"\0{WIDE[char]}\0" if at in changed else char for at, char in enumerate(text))
    return re.sub(r" ?\0(.)\0 ?", r"\1", marked)


def _in_chinese(text: str, at: int) -> bool:
    """Whether the mark there belongs to a Chinese sentence; an English one puts a space behind it."""
    before, after, behind = _before(text, at), _after(text, at), text[at + 1 : at + 2]
    if text[at] == "!" and behind == "[":
        return False
    if behind in ("\n", WORD) and before in (")", "\uff09", "%"):
        return True
    if CHINESE.match(before) or (CHINESE.match(after) and not behind.isspace()):
        return True
    if behind == "\n" and CHINESE.match(_after(text, at, " *\n")):
        return True
    if text[at] == ":" and (before.isalnum() or before == WORD) and (behind.isalpha() or behind == WORD):
        return True
    if text[at] in ",;":
        number = text[at] == "," and before.isdigit() and behind.isdigit()
        return bool(behind.strip(" \n\"'")) and not number
    return behind in ("", "\n", '"')


def _around_chinese(text: str, opens: int, closes: int) -> bool:
    """Whether brackets hold Chinese, or a link, or stand beside it and are not those of a call."""
    if CHINESE.search(text, opens, closes):
        return True
    if WORD in text[opens:closes] and (_before(text, opens, "") == WORD or text[opens + 1] == "["):
        return True
    beside = _before(text, opens, " *\n"), _after(text, closes)
    chinese = any(CHINESE.match(char) or char in WIDE.values() for char in beside if char)
    return not CALL.search(text[: closes + 1]) and chinese


def _before(text: str, at: int, passed: str = " *") -> str:
    return text[:at].rstrip(passed)[-1:]


def _after(text: str, at: int, passed: str = " *") -> str:
    return text[at + 1 :].lstrip(passed)[:1]


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    opened: list[int] = []
    for at, char in enumerate(text):
        if char == "(":
            opened.append(at)
        elif char == ")" and opened:
            yield opened.pop(), at


def of_toml(source: str) -> str:
    """A TOML or JavaScript file whose strings are texts."""
    return LITERAL.sub(lambda found: wide(found.group()), source)


def of_python(source: str) -> str:
    """A module whose strings are texts, but for raw ones, which are patterns."""
    lines = source.splitlines(keepends=True)
    tokens = [*tokenize.generate_tokens(io.StringIO(source).readline)]
    for token in reversed([each for each in tokens if each.type == tokenize.STRING]):
        if not token.string.startswith("r") and token.start[0] == token.end[0]:
            row, start, end = token.start[0] - 1, token.start[1], token.end[1]
            lines[row] = lines[row][:start] + wide(token.string) + lines[row][end:]
    return "".join(lines)


KINDS: dict[str, Callable[[str], str]] = {".md": wide, ".toml": of_toml, ".js": of_toml, ".py": of_python}


def written() -> Iterator[tuple[Path, Callable[[str], str]]]:
    """Each file with Chinese that is written by hand, and what reads it."""
    listed = subprocess.run(["git", "ls-files"], cwd=pages.ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        path = pages.ROOT / name
        if path.suffix in KINDS and not OTHERS.match(name) and path.is_file():
            yield path, KINDS[path.suffix]


def main() -> None:
    for path, kind in written():
        text = path.read_text("utf-8")
        if (better := kind(text)) != text:
            path.write_text(better, "utf-8")
            print(path.relative_to(pages.ROOT))


if __name__ == "__main__":
    main()
