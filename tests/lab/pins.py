"""tests/stacks/pins/NAME.txt: every package of a stack, to the version, with the digest of its file.

    python -m tests.lab.pins tf523-ds0198     # of a stack that is made; without a name, of those on record

``pip install --require-hashes`` reads such a file, on the platform that its first line names. The lab makes a
stack of these versions (``envs.make``), whatever has been published since.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

from packaging.utils import parse_wheel_filename

from tests.lab import envs
from tests.lab.envs import PINS, Stack

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Taker(NamedTuple):
    """The Python that takes files: its version, and the tags of wheels that it takes, the best first."""

    version: str
    tags: tuple[str, ...]


def text(packages: list[dict[str, Any]], taker: Taker) -> str:
    """The pins of what ``pylock.toml`` says of each package: of its files the one that ``taker`` takes."""
    chosen = [(package, _file(package, taker)) for package in packages]
    published = [file["upload-time"] for _, file in chosen if "upload-time" in file]
    newest = max(published, default=datetime.datetime.now(datetime.timezone.utc)).date()
    where = f"Python {taker.version}, {sys.platform} {platform.machine()}"
    lines = [
        f"{package['name']}=={package['version']} --hash=sha256:{file['hashes']['sha256']}"
        for package, file in chosen
    ]
    head = f"# {where}; nothing in it was published after {newest}."
    return "".join(f"{each}\n" for each in (head, *lines))


def _file(package: dict[str, Any], taker: Taker) -> dict[str, Any]:
    """The best wheel of ``package``, or its source."""
    order = {tag: place for place, tag in enumerate(taker.tags)}
    fitting = []
    for wheel in package.get("wheels", ()):
        name = unquote(PurePosixPath(urlparse(wheel["url"]).path).name)
        places = [order[str(tag)] for tag in parse_wheel_filename(name)[3] if str(tag) in order]
        fitting += [(min(places), name, wheel)] if places else []
    found: dict[str, Any] = min(fitting)[2] if fitting else package["sdist"]
    return found


def resolved(stack: Stack) -> list[dict[str, Any]]:
    """Every package that is installed in ``stack``, and its files."""
    python = str(stack.python)
    with tempfile.TemporaryDirectory() as folder:
        frozen, lock = Path(folder, "frozen.txt"), Path(folder, "pylock.toml")
        frozen.write_text(_uv("freeze", "--python", python))
        _uv("compile", "--no-deps", "--python", python, *envs.sources(), str(frozen), "-o", str(lock))
        packages: list[dict[str, Any]] = tomllib.loads(lock.read_text("utf-8"))["packages"]
    return packages


def taker(stack: Stack) -> Taker:
    """The Python of ``stack``."""
    asked = "import platform, packaging.tags as t; print(platform.python_version(), *t.sys_tags())"
    done = subprocess.run([stack.python, "-c", asked], check=True, capture_output=True, text=True)
    version, *tags = done.stdout.split()
    return Taker(version, tuple(tags))


def _uv(*words: str) -> str:
    command = [sys.executable, "-m", "uv", "--quiet", "pip", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.pins")
    parser.add_argument("names", nargs="*")
    stacks = envs.read_stacks()
    for name in parser.parse_args().names or sorted(path.stem for path in PINS.glob("*.txt")):
        if stacks[name].complete:
            PINS.mkdir(exist_ok=True)
            (PINS / f"{name}.txt").write_text(text(resolved(stacks[name]), taker(stacks[name])), "utf-8")
            print(f"written: {name}")


if __name__ == "__main__":
    main()
