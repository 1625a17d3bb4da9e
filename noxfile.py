"""The unit tests on every Python vlmpatch supports: ``make test-pythons``, or one by ``nox -s unit-3.12``.

Which those are is said by the classifiers of ``pyproject.toml``. One that is not installed is skipped, on a
CI machine it is an error. ``nox -s site`` builds the documentation site, ``nox -s browse`` opens it in a
browser.
"""

from __future__ import annotations

import os
from pathlib import Path

import nox

PYPROJECT = nox.project.load_toml("pyproject.toml")
# pyenv's launchers find the versions that are switched on only.
PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *map(str, sorted(PYENV.glob("3.*/bin")))])

nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.reuse_venv = "yes"


@nox.session(python=nox.project.python_versions(PYPROJECT))
def unit(session: nox.Session) -> None:
    """The tests that need no stack; what follows ``--`` goes to pytest."""
    session.install("--group", "dev")
    words = session.posargs or ["-n", "2", "tests/unit"]
    session.run("python", "-m", "pytest", "-q", *words, env={"PYTHONPATH": ""})


@nox.session
def build(session: nox.Session) -> None:
    """Wheel and source distribution into ``dist``: built twice to the same bytes, and checked."""
    session.install("--group", "release")
    session.run("python", "-m", "tests.release", "--build", env={"PYTHONPATH": "."})


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation site into ``build/site``: ``make site``."""
    session.install("--group", "site")
    session.run("python", "-m", "website", *session.posargs, env={"PYTHONPATH": "."})


@nox.session
def browse(session: nox.Session) -> None:
    """Look at the built site in a browser; what follows ``--`` goes to ``tests.site.browse``."""
    session.install("--group", "site", "--group", "browse")
    session.run("python", "-m", "tests.site.browse", *session.posargs, env={"PYTHONPATH": "."})
