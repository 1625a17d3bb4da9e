"""Public threads, with a box to search them."""

from __future__ import annotations

from website.failure_pages import search_box

LABEL = {
    "en": "Search: owner/repository#number, a model, an error",
    "zh": "搜索：owner/repository#编号、模型、报错",
}


def with_search(text: str, language: str) -> str:
    """The generated page with the place for the box below its title and what the page is."""
    title, other, intro, rest = text.split("\n\n", 3)
    return "\n\n".join((title, other, intro, search_box(LABEL[language]), rest))
