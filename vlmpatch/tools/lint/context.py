"""What a rule is told beside the launch, and the parts of which it makes its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from vlmpatch.gate import versions
from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.launch_config import Option
from vlmpatch.tools.lint.model import Model
from vlmpatch.tools.view.language import Words

_SHOWN = 3  # patches that a finding names


class Around(NamedTuple):
    """What else a rule may ask for.

    Attributes:
        model: the model, if one was given.
        installed: versions, by distribution.
        ending: the patches that act in this environment, by the failure that each ends.
        say: the language.
        elsewhere: those of any environment, where there is no torch in this one.
    """

    model: Model | None
    installed: Mapping[str, str | None]
    ending: Mapping[str, tuple[str, ...]]
    say: Words
    elsewhere: Mapping[str, tuple[str, ...]] = MappingProxyType({})


def inside(around: Around, name: str, specifier: str) -> bool:
    """Whether the version of ``name`` that is installed lies in ``specifier``."""
    version = around.installed.get(name)
    if version is None:
        return True  # not known here: the launch may be for another machine
    try:
        return versions.satisfies(version, specifier)
    except ValueError:
        return True


def known(
    around: Around,
    code: str,
    failure: str,
    title: str,
    evidence: str,
    fix: str,
    by: tuple[str, ...] | None = None,
) -> Finding:
    """A failure that is known to follow: a warning, or a note where a patch ends it here.

    Args:
        around: what acts here.
        code: of the finding.
        failure: that follows.
        title: what it is.
        evidence: what was seen.
        fix: what ends it without vlmpatch.
        by: the patches that end it in this case; all that end ``failure`` where nothing is given.
    """
    patches = _ending(around.ending, failure, by)
    severity = "note" if patches else "warning"
    return Finding(
        code, severity, title, evidence, fixed_or(around, failure, fix, by), link(failure), patches
    )


def fixed_or(around: Around, failure: str, fix: str, by: tuple[str, ...] | None = None) -> str:
    """That vlmpatch fixes ``failure`` where it does; else ``fix``, and what would where there is torch."""
    if patches := _ending(around.ending, failure, by):
        return ended(around, failure, patches)
    if patches := _ending(around.elsewhere, failure, by):
        line = "import vlmpatch  # {failure}: {patches}"
        return f"{fix}\n{line.format(failure=failure, patches=_shown(patches))}".lstrip()
    return fix


def _ending(
    ending: Mapping[str, tuple[str, ...]], failure: str, by: tuple[str, ...] | None
) -> tuple[str, ...]:
    if by is None:
        return ending.get(failure, ())
    acting = {id_ for ids in ending.values() for id_ in ids}
    return tuple(id_ for id_ in by if id_ in acting)


def ended(around: Around, failure: str, patches: tuple[str, ...]) -> str:
    """That nothing has to be done against ``failure``, and why."""
    said = "nothing: vlmpatch fixes this ({failure}: {patches})"
    return around.say(said, failure=failure, patches=_shown(patches))


def _shown(patches: tuple[str, ...]) -> str:
    return ", ".join(patches[:_SHOWN]) + (" …" if len(patches) > _SHOWN else "")


def quote(given: Option) -> str:
    """Where ``given`` stands, and what it says."""
    return printable(f"{given.where}: {given.name} = {given.value[:80]}")


def written(given: Option | None, name: str, value: str) -> str:
    """The setting as the place that ``given`` comes from writes it: a flag, or a line of YAML or JSON."""
    where = given.where if given else ""
    if where.endswith((".yaml", ".yml")):
        return f"{name}: {value}"
    if where.endswith(".json"):
        quoted = value if value in ("true", "false") or value.isdigit() else f'"{value}"'
        return f'"{name}": {quoted}'
    return f"--{name} {value}"


def nonreentrant(given: Option | None) -> str:
    """How the place that ``given`` comes from says use_reentrant=False."""
    where, name = (given.where, given.name) if given else ("", "")
    if re.search(r"\.py:\d+$", where):
        return 'gradient_checkpointing_kwargs = {"use_reentrant": False}'
    if name in ("use_reentrant", "use_reentrant_gc"):
        return written(given, name, "false")
    if where.endswith((".yaml", ".yml")):
        return "gradient_checkpointing_kwargs: {use_reentrant: false}"
    return """--gradient_checkpointing_kwargs '{"use_reentrant": false}'"""


def link(failure: str) -> str:
    """The command that tells more of ``failure``."""
    return f"python -m vlmpatch explain {failure}"
