"""python -m website               build the site into build/site, both languages
python -m website --pages        write the Markdown only, into build/pages
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from pathlib import Path

from tests.lab.pages import LANGUAGES, ROOT
from website import symptoms, tree

BUILD = ROOT / "build"
FOLDER = {"en": "", "zh": "zh-CN"}  # of a language within the site
OTHER = {"en": "zh-CN", "zh": "en"}


def main() -> int:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    parser.add_argument("--pages", action="store_true", help="write the Markdown only")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("jieba").setLevel(logging.WARNING)
    shutil.rmtree(BUILD / "pages", ignore_errors=True)
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    for language in LANGUAGES:
        write(language, BUILD / "pages" / language)
    if not asked.pages:
        for language in LANGUAGES:
            build(language, BUILD / "pages" / language, BUILD / "site" / FOLDER[language])
        print(f"built: {BUILD / 'site' / 'index.html'}")
    return 0


def write(language: str, folder: Path) -> None:
    """Write the Markdown of one language, and what its pages load."""
    titles = tree.titles(language)
    for page in tree.pages(language):
        path = folder / page.address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(tree.moved(page, titles), "utf-8")
    shutil.copytree(Path(__file__).parent / "assets", folder / "assets")
    (folder / "assets" / "symptoms.js").write_text(symptoms.script(), "utf-8")


def build(language: str, pages: Path, site: Path) -> None:
    """Build one language; a warning ends it.

    Raises:
        mkdocs.exceptions.Abort: there were warnings.
    """
    from mkdocs.commands.build import build as mkdocs
    from mkdocs.config import load_config

    config = load_config(
        str(Path(__file__).with_name("mkdocs.yml")),
        docs_dir=str(pages),
        site_dir=str(site),
        nav=tree.navigation(language),
        site_description=tree.DESCRIPTION[language],
    )
    config.theme["language"] = language
    config.extra["other"] = OTHER[language]
    mkdocs(config)


if __name__ == "__main__":
    sys.exit(main())
