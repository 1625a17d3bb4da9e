"""python -m tests.site.browse [--shots FOLDER] [--record]

Opens ``build/site`` in Chromium and tries what a reader does: both languages, wide and narrow, light and
dark, on paper; pastes a traceback, follows the switch of the language, searches, filters. Prints what is
wrong, a line each; so is a first screen that is not as it was when it was looked at (``--record`` after
you did: ``--shots`` keeps the pictures).
Exit code 1: something is wrong; 3: there is no browser.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.lab.pages import ROOT
from tests.site import screens
from tests.site.screens import Screen
from website.__main__ import FOLDER

SITE = ROOT / "build" / "site"
NO_BROWSER = 3
PATIENCE = 120_000  # milliseconds for what takes one; a machine may be busy
WIDE, NARROW, PHONE = (1280, 800), (390, 844), (360, 740)
PAGES = {
    "start": ("index.html", {"en": "paste the traceback", "zh": "粘贴报错"}),
    "failures": ("failures/index.html", {"en": "what you see", "zh": "每一项有自己的页面"}),
    "threads": ("field-reports.html", {"en": "public threads", "zh": "个公开帖子"}),
    "failure": ("failures/F4.html", {"en": "What fixes it", "zh": "修复它的补丁"}),
    "patch": ("patches/zero3-recompute-release.html", {"en": "Switch it off", "zh": "关闭"}),
    "compatibility": ("compatibility.html", {"en": "How it was measured", "zh": "怎样测量的"}),
}
TRACEBACK = """Traceback (most recent call last):
  File "/env/transformers/trainer.py", line 1, in training_step
RuntimeError: Expected to mark a variable ready only once.
"""
DRAWN = (
    "frameworks.html",
    "mixed-batches.html",
    "old-results.html",
    "zero3-gathers.html",
)  # pages with a figure
LEGIBLE = 9.5  # pixels on the screen, at least, for the smallest text of a figure
# Of each text of a figure that is shown: its size on the screen, and how far it reaches beyond the figure.
TEXTS = """svgs => svgs.filter(svg => svg.checkVisibility()).flatMap(svg => {
  const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width;
  return [...svg.querySelectorAll("text")].map(text => {
    const box = text.getBoundingClientRect();
    return [parseFloat(getComputedStyle(text).fontSize) * scale,
            Math.max(frame.left - box.left, box.right - frame.right, box.bottom - frame.bottom)];
  });
})"""
# The texts among those that need more than a line.
WRAPPED = """all => all.filter(each => each.offsetHeight > 2 * parseFloat(getComputedStyle(each).fontSize))
  .map(each => each.textContent)"""
SEARCHED = {"en": "reentrant", "zh": "梯度"}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address at which the built site can be read."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class Reader:
    """One reader's browser; collects what is wrong.

    Args:
        browser: of playwright.
        start: the address of the site.
        shots: where screenshots go, if anywhere.
    """

    def __init__(self, browser: Any, start: str, shots: Path | None) -> None:
        self.browser, self.start, self.shots = browser, start, shots
        self.wrong: list[str] = []
        self.screens: dict[str, Screen] = {}

    @contextlib.contextmanager
    def opened(
        self, address: str, language: str, size: tuple[int, int] = WIDE, scheme: str = "light"
    ) -> Iterator[Any]:
        """A page of the site; what it prints as an error, or asks of another host, is wrong."""
        name = f"{language} {address} {size[0]} {scheme}"
        viewport = {"width": size[0], "height": size[1]}
        context = self.browser.new_context(viewport=viewport, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.wrong.append(f"{name}: {error}"))
        page.on("console", lambda said: self._printed(name, said))
        page.on("request", lambda asked: self._asked(name, asked.url))
        page.goto("/".join(filter(None, (self.start, FOLDER[language], address))))
        page.wait_for_load_state("networkidle")
        yield page
        context.close()

    def _printed(self, name: str, said: Any) -> None:
        if said.type == "error":
            self.wrong.append(f"{name}: {said.text}")

    def _asked(self, name: str, url: str) -> None:
        if not url.startswith((self.start, "data:", "blob:")):
            self.wrong.append(f"{name}: loads {url}")

    def expect(self, what: str, holds: object) -> None:
        """``what`` is wrong unless it holds."""
        if not holds:
            self.wrong.append(what)

    def looks(self) -> None:
        """Every kind of page fits its screen, in its language, and has what it is for."""
        for language in FOLDER:
            for kind, (address, texts) in PAGES.items():
                for size in (WIDE, NARROW):
                    for scheme in ("light", "dark"):
                        with self.opened(address, language, size, scheme) as page:
                            self._looks(page, f"{kind}-{language}-{size[0]}-{scheme}", texts[language])

    def _looks(self, page: Any, name: str, text: str) -> None:
        self.expect(f"{name}: no {text!r}", text in page.inner_text("article"))
        sizes = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        width, height = page.evaluate(sizes)
        self.expect(f"{name}: {width} pixels wide", width <= page.viewport_size["width"])
        if name.startswith("start-") and page.viewport_size["width"] == WIDE[0]:
            self.expect(f"{name}: does not fit one screen: {height}", height <= WIDE[1])
        colours = ("backgroundColor", "color")
        ground, ink = (page.evaluate(f"getComputedStyle(document.body).{colour}") for colour in colours)
        self.expect(f"{name}: {ink} on {ground}", _brightness(ground) > _brightness(ink) or "dark" in name)
        self.expect(f"{name}: {ink} on {ground}", _brightness(ground) < _brightness(ink) or "light" in name)
        self.screens[name] = screens.seen(page)
        if self.shots:
            page.screenshot(path=self.shots / f"{name}.png")

    def draws(self) -> None:
        """Every figure can be read on a phone as on a wide screen, whole and without being scrolled."""
        for language in FOLDER:
            for address in DRAWN:
                for size, scheme in ((WIDE, "light"), (PHONE, "light"), (PHONE, "dark")):
                    with self.opened(address, language, size, scheme) as page:
                        self._draws(
                            page, f"figure-{address.removesuffix('.html')}-{language}-{size[0]}-{scheme}"
                        )

    def _draws(self, page: Any, name: str) -> None:
        texts = page.eval_on_selector_all(".vp-figure svg", TEXTS)
        self.expect(f"{name}: no text", texts)
        self.expect(f"{name}: text of {min(texts)[0]:.1f} pixels", min(texts)[0] >= LEGIBLE)
        self.expect(f"{name}: text beside the figure", max(beyond for _, beyond in texts) < 1)
        self.expect(
            f"{name}: scrolls",
            page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"],
        )
        if self.shots:
            page.locator(".vp-figure").first.screenshot(path=self.shots / f"{name}.png")

    def compares(self) -> None:
        """The first screens are as they were when they were looked at."""
        looked_at = screens.known()
        for name, screen in self.screens.items():
            for words in screens.differs(screen, looked_at.get(name)):
                self.expect(f"{name}: {words} (look, then {screens.AGAIN})", False)

    def pastes(self) -> None:
        """The start page explains a traceback, and leads to the page of the failure."""
        for language in FOLDER:
            with self.opened("index.html", language) as page:
                page.fill("textarea", TRACEBACK)
                page.click("form button[type=submit]")
                page.wait_for_selector(".vp-answer h3")
                self.expect(f"{language}: pasted", page.inner_text(".vp-answer h3").startswith("F3 · "))
                line = page.inner_text(".vp-answer pre >> nth=0")
                self.expect(f"{language}: the line to add is {line}", line == "import vlmpatch")
                wrapped = page.eval_on_selector_all(".vp-answer strong", WRAPPED)
                self.expect(f"{language}: labels of the answer that are wrapped: {wrapped}", not wrapped)
                if self.shots:
                    page.screenshot(path=self.shots / f"pasted-{language}.png")
                page.click('.vp-answer a[href$="F3.html"]')
                self.expect(f"{language}: the page of F3", page.inner_text("h1").startswith("F3 · "))

    def switches(self) -> None:
        """The switch leads to the same page in the other language, and back."""
        for address, _ in PAGES.values():
            with self.opened(address, "en") as page:
                for lang in ("zh", "en"):
                    page.click(".vp-language")
                    page.wait_for_load_state()
                    arrived = page.evaluate("document.documentElement.lang") == lang and page.url.endswith(
                        address
                    )
                    self.expect(f"{address}: the switch to {lang} leads to {page.url}", arrived)

    def searches(self) -> None:
        """The search of each language finds a word of it."""
        for language, word in SEARCHED.items():
            with self.opened("index.html", language) as page:
                page.click(".md-search__input")
                page.fill(".md-search__input", word)
                page.press(".md-search__input", "End")  # the search listens to keys
                page.wait_for_selector(".md-search-result__item")
                found = page.inner_text(".md-search-result__list").replace("\u200b", "")
                self.expect(f"{language}: {word} is not in what the search found", word in found)

    def filters(self) -> None:
        """Filters leave what fits; what was chosen is in the address."""
        with self.opened("compatibility.html", "en") as page:
            rows = ".vp-results tbody tr:visible"
            every = page.locator(rows).count()
            page.select_option("select[name=engine]", "ZeRO-3")
            page.select_option("select[name=deepspeed]", "0.18.2")
            left = page.locator(rows)
            self.expect("filters leave nothing, or everything", 0 < left.count() < every)
            engines = {left.nth(number).get_attribute("data-engine") for number in range(left.count())}
            self.expect(f"engines that are left: {engines}", engines == {"ZeRO-3"})
            self.expect(page.url, "engine=ZeRO-3" in page.url and "deepspeed=0.18.2" in page.url)
        with self.opened("failures/index.html", "zh") as page:
            page.fill(".vp-find input", "[3584]")
            self.expect("the filter of the failures", page.locator("article tbody tr:visible").count() == 1)

    def prints(self) -> None:
        """What is there to be clicked is not printed."""
        with self.opened("compatibility.html", "en") as page:
            page.emulate_media(media="print")
            self.expect("filters are printed", not page.is_visible(".vp-filters"))
            self.expect("the table is not printed", page.is_visible(".vp-results table"))


def _brightness(colour: str) -> int:
    return sum(int(float(part)) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.site.browse", description=__doc__)
    parser.add_argument("--shots", type=Path, help="keep screenshots here")
    parser.add_argument("--record", action="store_true", help="I have looked at the screens")
    asked = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("there is no Chromium here: nobody looked at the site (apt-get install -y chromium)")
        return NO_BROWSER
    if not (SITE / "index.html").exists():
        print(f"there is no {SITE / 'index.html'}: make site")
        return 1
    if asked.shots:
        asked.shots.mkdir(parents=True, exist_ok=True)
    with served() as start, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        reader = Reader(browser, start, asked.shots)
        reader.looks()
        if asked.record:
            screens.record(reader.screens)
        reader.draws()
        reader.compares()
        reader.pastes()
        reader.switches()
        reader.searches()
        reader.filters()
        reader.prints()
        browser.close()
    print("\n".join(reader.wrong) or "nothing is wrong")
    return 1 if reader.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
