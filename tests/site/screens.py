"""What the first screen of a page shows: where its parts lie and what is written there.

``data/screens.csv`` has that of the screens that were looked at. A number counts as any number: results are
added all the time. Parts may move by what another version of the fonts makes of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import table
from tests.lab.pages import ROOT

STORE = ROOT / "data" / "screens.csv"
AGAIN = "python -m tests.site.browse --record"
PARTS = ("header", "h1", "article", "article form, .vp-filters", "article table")
TOLERANCE = 12  # pixels
# The boxes of the parts that begin on this screen, and all text on it that is not hidden. What the search
# says of itself changes while it loads.
SEE = """parts => {
  const on = box => box.width > 0 && box.height > 0 && box.top < innerHeight && box.bottom > 0;
  const boxes = {};
  for (const part of parts) {
    const found = [...document.querySelectorAll(part)].find(each => on(each.getBoundingClientRect()));
    if (!found) continue;
    const box = found.getBoundingClientRect();
    boxes[part] = [box.left, box.top, box.width, Math.min(box.bottom, innerHeight) - box.top].map(Math.round);
  }
  const words = [];
  for (const root of document.querySelectorAll("header, article")) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      const parent = walker.currentNode.parentElement;
      if (parent.checkVisibility() && !parent.closest(".md-search") && on(range.getBoundingClientRect()))
        words.push(walker.currentNode.data);
    }
  }
  return [boxes, words.join(" ")];
}"""


class Screen(NamedTuple):
    """One screen; ``boxes`` has left, top, width and visible height of each part."""

    boxes: Mapping[str, tuple[int, ...]]
    text: str  # its digest


COLUMNS = ("screen", "text", *PARTS)


def seen(page: Any) -> Screen:
    """What ``page``, playwright's, shows now."""
    boxes, words = page.evaluate(SEE, list(PARTS))
    return Screen({part: tuple(box) for part, box in boxes.items()}, digest(words))


def digest(words: str) -> str:
    plain = re.sub(r"\d+", "0", " ".join(words.split()))
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


def differs(screen: Screen, known: Screen | None) -> list[str]:
    """What is not as it was when the screen was looked at, one sentence each."""
    if known is None:
        return ["nobody has looked at it"]
    found = [] if screen.text == known.text else ["its text is another"]
    for part in PARTS:
        now, then = screen.boxes.get(part), known.boxes.get(part)
        if (now is None) != (then is None):
            found.append(f"{part} is {'gone' if now is None else 'new'}")
        elif now and then and any(abs(a - b) > TOLERANCE for a, b in zip(now, then, strict=True)):
            found.append(f"{part} lies at {now}, and lay at {then}")
    return found


def known(store: Path = STORE) -> dict[str, Screen]:
    """The screens that were looked at.

    Raises:
        table.Broken: the file is not whole.
    """
    screens = {}
    for _, line in table.read(store, COLUMNS, AGAIN):
        boxes = {part: tuple(map(int, line[part].split())) for part in PARTS if line[part]}
        screens[line["screen"]] = Screen(boxes, line["text"])
    return screens


def record(screens: Mapping[str, Screen], store: Path = STORE) -> None:
    """These were looked at."""
    lines = [
        (name, screen.text, *(" ".join(map(str, screen.boxes.get(part, ()))) for part in PARTS))
        for name, screen in sorted(screens.items())
    ]
    table.write(store, COLUMNS, lines)
