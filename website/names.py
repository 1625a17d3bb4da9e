"""Names within which no line ends, such as ZeRO-3 and MiniCPM-V: a hook of mkdocs."""

from __future__ import annotations

import re

_MARKUP = r"<(pre|code|svg)\b.*?</\1>|<[^>]*>"
_NAME = r"\b(?P<name>ZeRO-\d|MiniCPM-[Vo]|ms-swift|Qwen[\d.]*-VL)\b"
# In ASCII: a Chinese character beside a name is no part of it.
_PARTS = re.compile(f"{_MARKUP}|{_NAME}", re.DOTALL | re.ASCII)


def on_page_content(html: str, **_: object) -> str:
    """The page with every name in its text in one piece."""
    return _PARTS.sub(
        lambda part: f'<span class="vp-name">{part[0]}</span>' if part["name"] else part[0], html
    )
