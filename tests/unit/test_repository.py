"""The repository's own settings: what is written in two places is the same in both."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
FORMS = sorted((CHECKOUT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml"))
WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.yml"))
SETTINGS = [CHECKOUT / ".pre-commit-config.yaml", *sorted((CHECKOUT / ".github").rglob("*.yml"))]


def parsed(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def pythons() -> list[str]:
    """The versions of the classifiers, which nox reads."""
    return [word.split()[-1] for word in PROJECT["classifiers"] if re.search(r":: Python :: 3\.", word)]


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.name)
def test_settings_parse(path: Path) -> None:
    assert parsed(path)


def test_the_oldest_python_is_the_one_required() -> None:
    required = SpecifierSet(PROJECT["requires-python"])
    oldest = int(pythons()[0].removeprefix("3."))
    assert pythons() == [f"3.{oldest + number}" for number in range(len(pythons()))]
    assert f"3.{oldest}" in required
    assert f"3.{oldest - 1}.99" not in required


def test_the_workflow_runs_on_every_python() -> None:
    jobs = parsed(CHECKOUT / ".github/workflows/ci.yml")["jobs"]
    assert jobs["unit"]["strategy"]["matrix"]["python"] == pythons()
    steps = [step for job in jobs.values() for step in job["steps"]]
    named = [step["with"]["python-version"] for step in steps if "with" in step]
    assert {version for version in named if "matrix" not in version} <= set(pythons())


def commands(workflow: Path) -> str:
    """All that its steps run."""
    jobs = parsed(workflow)["jobs"].values()
    return "\n".join(step["run"] for job in jobs for step in job["steps"] if "run" in step)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_there_is(workflow: Path) -> None:
    run = commands(workflow)
    assert set(re.findall(r"\bmake (?:\.venv/)?([\w-]+)", run)) <= {*targets(), "ready"}
    sessions = re.findall(r"^def (\w+)\(session", (CHECKOUT / "noxfile.py").read_text(), re.MULTILINE)
    assert {name.partition("-")[0] for name in re.findall(r"--session ([\w-]+)", run)} <= {*sessions}


def test_a_tag_is_published_once_the_checklist_is_closed() -> None:
    workflow = CHECKOUT / ".github" / "workflows" / "release.yml"
    jobs = parsed(workflow)["jobs"]
    steps = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert ".venv/bin/python -m tests.release" in steps
    assert jobs["publish"]["needs"] == "build"
    assert "secrets." not in workflow.read_text()


def test_the_readme_names_the_first_and_the_last_python() -> None:
    for page, words in (("README.md", "Python {} to {}"), ("README.zh-CN.md", "Python {} 到 {}")):
        assert words.format(pythons()[0], pythons()[-1]) in (CHECKOUT / page).read_text()


def test_hooks_fetch_nothing() -> None:
    for repo in parsed(CHECKOUT / ".pre-commit-config.yaml")["repos"]:
        assert repo["repo"] == "local"
        assert {hook["language"] for hook in repo["hooks"]} == {"system"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_for_the_doctor(path: Path) -> None:
    form = parsed(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = {field["id"]: field for field in form["body"]}
    assert len(fields) == len(form["body"])
    assert "python -m vlmpatch doctor --markdown" in fields["doctor"]["attributes"]["description"]
    assert fields["doctor"]["validations"]["required"] is True
    assert all(field["attributes"]["label"] for field in fields.values())
