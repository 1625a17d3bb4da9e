"""Public threads, with a box to search them."""

from __future__ import annotations

from website.failure_pages import search_box

LABEL = {
    "en": "Search: owner/repository#number, a model, an error",
    "zh": "搜索：owner/repository#编号、模型、报错",
}


def with_search(text: str, language: str) -> str:
    """The generated page with the place for the box before its first section."""
    before, found, rest = text.partition("\n## ")
    return f"{before}\n{search_box(LABEL[language])}\n{found}{rest}"
