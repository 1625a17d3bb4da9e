"""Every view, as a user sees it, beside the file that says how it looks.

The catalog is one of the test's own, so that a new patch changes no view. ``VLMPATCH_GOLDEN=write`` rewrites.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PATCH, UPSTREAM, World
from vlmpatch.catalog.model import Catalog
from vlmpatch.catalog.read import read
from vlmpatch.tools import cli, retire
from vlmpatch.tools.doctor import examination, packages, verified, views
from vlmpatch.tools.explain import answer_page, answers, failures, pages
from vlmpatch.tools.view.language import Words
from vlmpatch.tools.view.page import Page, columns

WRITE = os.environ.get("VLMPATCH_GOLDEN") == "write"
GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = "transformers version: 4.49.0, PyTorch version (GPU?): 2.5.1+cu124 (True)\n"
READY = "[rank1]: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of\n"
LOGS = {
    "explain-f3": VERSIONS + READY,
    "explain-f3-on-5": VERSIONS.replace("4.49.0", "5.1.0") + READY,
    "explain-f3-active": "vlmpatch [default-choice]: a word\n" + VERSIONS + READY,
    "explain-warning": "UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
    "explain-memory": "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 34.83 GiB.",
    "explain-unknown": 'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: "messages"',
    "explain-nothing": "all is well",
}
LAUNCH = (
    "torchrun train.py --use_lora true --deepspeed zero3 --use_reentrant false --max_slice_nums 20 "
    "--ddp_timeout 100000"
)


@pytest.fixture
def known(world: World, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The catalog of these tests, in an environment of known versions."""
    shutil.copy(GOLDEN / "compat.toml", world.folder)
    shutil.copytree(GOLDEN / "failures", world.folder / "failures", dirs_exist_ok=True)
    for name in ("default_choice", "swift_override"):
        (world.patches / UPSTREAM / f"{name}.py").write_text(PATCH)
    world.package("fakeformers")
    for name, version in (("torch", "2.5.1"), ("transformers", "4.49.0"), ("deepspeed", "0.16.4")):
        world.distribution(name, version)
    library = sysconfig.get_path("purelib")
    monkeypatch.setattr(packages, "locate", lambda name: f"{library}/{name}/__init__.py")
    for name in [name for name in os.environ if examination.tells(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLMPATCH_LOG", "loud")
    monkeypatch.setenv("HF_MODULES_CACHE", str(world.folder))
    proof = verified.Proof({"transformers": "5.0.0"})
    monkeypatch.setattr(verified, "proofs", lambda: {"default-choice": [proof]})
    return read(str(world.folder / "compat.toml"))


def shown(known: Catalog, say: Words) -> dict[str, Callable[[], Page | str]]:
    def answered(text: str) -> Callable[[], Page]:
        return lambda: answer_page.page(answers.answer(io.BytesIO(text.encode()), known, say, None), say)

    def examined(launch: str = "", model: str = "") -> examination.Findings:
        return examination.examine(known, examination.Asked(model, command=launch), say)

    return {
        **{name: answered(text) for name, text in LOGS.items()},
        "start": lambda: cli._first(say),
        "failure": lambda: pages.failure_page(failures.read(known.path).known["F3"], known, say),
        "patch": lambda: pages.patch_page(known.entries["default-choice"], known, say),
        "doctor": lambda: views.page(examined(), say),
        "doctor-all": lambda: views.page(examined(), say, everything=True),
        "doctor-launch": lambda: views.page(examined(LAUNCH), say),
        "doctor-model": lambda: views.page(examined(model=str(GOLDEN / "model")), say),
        "doctor-nothing": lambda: views.page(examined("echo hello; bash gone.sh"), say),
        "doctor-markdown": lambda: views.markdown(examined(LAUNCH), say),
        "retire": lambda: retire.page(known, say),
    }


NAMES = sorted(shown(Catalog("", {}, {}, ()), Words("en")))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", NAMES)
def test_view(name: str, language: str, known: Catalog) -> None:
    made = shown(known, Words(language))[name]()
    text = settled(made.text() if isinstance(made, Page) else made, known)
    file = GOLDEN / f"{name}.{language}.txt"
    if WRITE:
        file.write_text(text)
    assert text == file.read_text(), f"VLMPATCH_GOLDEN=write pytest {__file__} rewrites {file.name}"


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "doctor-markdown"])
def test_view_fits_80_columns(name: str, language: str, known: Catalog) -> None:
    made = shown(known, Words(language))[name]()
    assert isinstance(made, Page)
    for _, line, style in made.lines():
        assert style == "code" or "/" in line or columns(line) <= 80


def settled(text: str, known: Catalog) -> str:
    """``text`` without what differs from machine to machine."""
    text = text.replace(os.path.dirname(known.path), "/here")
    text = re.sub(r"vlmpatch \d[\w.]*, Python \d[\w.]*", "vlmpatch X, Python Y", text)
    text = re.sub(r"(?:/[\w.-]+)+/site-packages", "/site-packages", text)
    return re.sub(r"[ \t]+\n", "\n", text) + "\n"
