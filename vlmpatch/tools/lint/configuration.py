"""A launch's configuration files: DeepSpeed's, accelerate's, TRL's, axolotl's, LLaMA-Factory's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from vlmpatch.support import files
from vlmpatch.tools.lint import unread
from vlmpatch.tools.lint.launch_config import LaunchConfig, Option
from vlmpatch.tools.lint.shell.script import found
from vlmpatch.tools.lint.unread import Unread

DEPTH = 3  # configurations that name configurations
LARGEST = 4 << 20  # bytes
HEAVIEST = 100_000  # values of a YAML file


def from_file(path: str, launch: LaunchConfig, depth: int = 0) -> None:
    """Read a DeepSpeed, accelerate, TRL, axolotl or LLaMA-Factory configuration."""
    data = _parsed(path, launch)
    if data is None:
        return
    _take(data, os.path.basename(path), launch, "")
    follow(launch, os.path.dirname(path) or ".", depth + 1)


def _take(data: Mapping[str, Any], where: str, launch: LaunchConfig, above: str) -> None:
    for name, value in data.items():
        launch.say(f"{above}{name}", value, where)
        if isinstance(value, Mapping):
            _take(value, where, launch, f"{above}{name}.")


def follow(launch: LaunchConfig, folder: str, depth: int) -> None:
    """Read the configurations that ``launch`` names, which may lie in ``folder`` or above it."""
    for name in (
        "deepspeed",
        "deepspeed_config.deepspeed_config_file",
        "config_file",
        "config",
        "accelerate_config",
        "fsdp_config",
    ):
        given = launch.options.get(name)
        path = os.path.join(folder, given.value) if given else ""
        if (
            depth < DEPTH
            and given
            and given.value.endswith((".json", ".yaml", ".yml"))
            and not _read(launch, path)
        ):
            if beside := found(folder, given.value):
                from_file(beside, launch, depth)
            else:
                launch.problems.append(Unread(given.where, unread.MISSING, f"--{name} {given.value}"))


def _read(launch: LaunchConfig, path: str) -> bool:
    """Whether ``path`` has been read before; from now on it has."""
    mark = f"\0{os.path.abspath(path)}"
    known = mark in launch.options
    launch.options.setdefault(mark, Option("", ""))
    return known


def _weight(node: Any, known: dict[int, int]) -> int:
    """How many values a YAML document has once each alias is what it stands for."""
    if id(node) not in known:
        known[id(node)] = HEAVIEST + 1  # where it holds itself
        parts = node.value if isinstance(getattr(node, "value", None), list) else []
        inner = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = min(HEAVIEST + 1, 1 + sum(_weight(each, known) for each in inner))
    return known[id(node)]


def _parsed(path: str, launch: LaunchConfig) -> Mapping[str, Any] | None:
    try:
        text = files.read(path, LARGEST)
        if path.endswith(".json"):
            data = json.loads(text)
        else:
            import yaml

            if _weight(yaml.compose(text, Loader=yaml.SafeLoader), {}) > HEAVIEST:
                raise ValueError(unread.ALIASES)
            data = yaml.safe_load(text)
    except ImportError:
        launch.problems.append(Unread(path, unread.NO_YAML))
        return None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error) or "cannot be read"
        launch.problems.append(Unread(path, why.splitlines()[0]))
        return None
    except Exception as error:  # PyYAML's errors have a root of their own, and it is imported only here
        launch.problems.append(Unread(path, str(error).splitlines()[0]))
        return None
    if not isinstance(data, Mapping):
        launch.problems.append(Unread(path, unread.NO_SETTINGS))
        return None
    return data
