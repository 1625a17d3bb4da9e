"""What end-to-end tests share: the cells of all collected cases, run together, and MiniCPM-V's stand-in."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import cells, envs, launch
from tests.lab.cells import Result
from tests.lab.outcomes import Case

# Files that take minutes, the longest first: whatever starts last should end soon.
LONG = (
    *("e2e/test_minicpmv", "e2e/test_zero3", "innocents/test_innocents", "e2e/test_minicpmv_launched"),
    *("e2e/test_launchers", "e2e/test_mixed", "e2e/test_training", "e2e/test_watchers"),
    *("e2e/test_import_orders", "e2e/test_gradients", "e2e/test_torch_of_the_day", "e2e/test_zero3_swift"),
    *("e2e/test_field", "e2e/test_watch", "e2e/test_watch_untouched", "e2e/test_zero3_outside"),
)
Visible = Callable[[], contextlib.AbstractContextManager[None]]
Results = dict[str, Result]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take the files in this order; within a file nothing moves."""
    tests = Path(__file__).parents[1]
    order = {tests / f"{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(scope="session")
def visible(request: pytest.FixtureRequest) -> Visible:
    """A context in which printing reaches the terminal: making a stack takes a while."""
    manager = request.config.pluginmanager.getplugin("capturemanager")

    @contextlib.contextmanager
    def shown() -> Iterator[None]:
        with manager.global_and_fixture_disabled() if manager else contextlib.nullcontext():
            yield

    return shown


@pytest.fixture(scope="session")
def run_cases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, visible: Visible
) -> Callable[[str], tuple[Results, Results]]:
    """For a stack's name: what its collected cases did bare (with their measures), and patched."""

    @functools.cache
    def run(name: str) -> tuple[Results, Results]:
        stack = envs.read_stacks()[name]
        wanted = [case.cell for case in _cases(request.session) if case.stack == name]
        out: Path = tmp_path_factory.mktemp(name)
        with visible():
            print(f"\n[{name}] {len(set(wanted))} cells bare, then patched", flush=True)
            bare = cells.run(stack, cells.with_references(wanted), out / "bare")
            patched = cells.run(stack, wanted, out / "patched", patched=True, reference=out / "bare")
        return bare, patched

    return run


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniCPM-V's checkpoint, script and data (``tests/standin``); made once, read by every stack."""
    made = tmp_path_factory.mktemp("minicpmv")
    stack = envs.read_stacks()["tf457-ds0182"]
    envs.make(stack)
    cache = {"HF_MODULES_CACHE": str(made / "modules")}
    finished = launch.run(stack, ["python", "-m", "tests.standin.make", made], limit=120, env=cache)
    assert finished.rc == 0, str(finished)
    return made


def _cases(session: pytest.Session) -> Iterator[Case]:
    for item in session.items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and _called(item) else {}
        if isinstance(case := parameters.get("case"), Case):
            yield case


def _called(item: pytest.Function) -> bool:
    return hasattr(item, "callspec")
