"""What a release nobody has seen yet does to vlmpatch, without running it.

    python -m tests.matrix.drift --newest                 the newest releases on the registry
    python -m tests.matrix.drift transformers==5.23.0 deepspeed==0.19.8
    python -m tests.matrix.drift tf523-ds0198             a stack of tests/stacks
    python -m tests.matrix.drift --record                 remember how the targets look on every stack

Releases are fetched alone (no dependencies) into a folder of their own and only read; of a torch that no
stack here has, the sources are kept. The report
compares with the recorded stack that is nearest below (``data/shapes/<stack>.csv``): which targets
changed, which gates no longer match, which upper bounds can be set. Exits 1 when there is something to do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.lab import envs, launch, table
from tests.lab.envs import Stack
from tests.lab.waits import completed
from tests.matrix import store

SHAPES = store.ROOT / "data" / "shapes"
COLUMNS = ("patch", "target", "gate", "why", "says", "reason", "parts")
VERSIONS = "*"  # in place of a patch: what was installed
SAYS = ("bug", "no bug", "unrecognised", "absent")
FOLLOWED = (
    "torch",
    "transformers",
    "deepspeed",
    "peft",
    "accelerate",
    "trl",
    "ms-swift",
    "axolotl",
    "llamafactory",
)
Probe = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.drift")
    parser.add_argument("what", nargs="*", help="a stack, or DISTRIBUTION==VERSION ...")
    parser.add_argument("--newest", action="store_true", help="look at the newest releases")
    parser.add_argument("--record", action="store_true", help="remember these stacks, or all that are made")
    asked = parser.parse_args()
    stacks = envs.read_stacks()
    if asked.record:
        named = [stacks[name] for name in asked.what]
        return record(named or [stack for stack in stacks.values() if stack.complete])
    pins = [f"{name}=={releases(name)[-1]}" for name in FOLLOWED] if asked.newest else asked.what
    if not pins:
        parser.error("what? a stack, releases, or --newest")
    seen = in_stack(stacks[pins[0]]) if pins[0] in stacks else in_releases(pins)
    recorded = shapes()
    recorded.pop(pins[0], None)
    lines = report(seen, recorded, store.entries().entries)
    print("\n".join([f"Looked at: {', '.join(f'{n} {v}' for n, v in seen['versions'].items())}", *lines]))
    return 1 if any(line.startswith("ACT") for line in lines) else 0


# --- looking ------------------------------------------------------------------------------------


def in_stack(stack: Stack) -> Probe:
    envs.make(stack)
    return _probe(stack.python, launch.environment(stack))


def in_releases(pins: Sequence[str]) -> Probe:
    """Look at ``pins`` and nothing else, beside the newest stack's torch where they name none."""
    torch = next((pin for pin in pins if pin.startswith("torch==")), "")
    others = [pin for pin in pins if pin != torch]
    folders = [store.ROOT, *([fetched(others)] if others else []), _torch(torch)]
    path = os.pathsep.join(map(str, folders))
    return _probe(Path(sys.executable), {**os.environ, "PYTHONPATH": path})


def fetched(pins: Sequence[str], beneath: str = "drift") -> Path:
    """A folder with ``pins`` and nothing they depend on."""
    folder = envs.cache_root() / beneath / "_".join(sorted(pins)).replace("==", "-")
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        fetch = [sys.executable, "-m", "uv", "-q", "pip", "install", "--no-deps", "--target", str(folder)]
        env = {**os.environ, "DS_BUILD_OPS": "0"}
        done = subprocess.run([*fetch, *pins], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        (folder / "complete").touch()
    return folder


def _torch(pin: str) -> Path:
    """A folder that holds ``pin``, or the newest stack's torch, and nothing else."""
    made = [stack for stack in envs.read_stacks().values() if stack.complete and pin in ("", stack.torch)]
    if not made:
        return _sources(fetched([pin or "torch"], "sources"))
    folder = envs.cache_root() / "drift" / f"torch-of-{made[-1].folder.name}"
    folder.mkdir(parents=True, exist_ok=True)
    site = next((made[-1].folder / "lib").glob("python*")) / "site-packages"
    for part in (site / "torch", *site.glob("torch-*.dist-info")):
        if not (folder / part.name).exists():
            (folder / part.name).unlink(missing_ok=True)
            (folder / part.name).symlink_to(part)
    return folder


def _sources(folder: Path) -> Path:
    """``folder`` without its compiled parts, which for torch are gigabytes that nobody reads."""
    for part in (path for path in folder.rglob("*") if path.is_file()):
        if part.suffix in (".so", ".a") or ".so." in part.name:
            part.unlink()
    return folder


def _probe(python: Path, env: Mapping[str, str]) -> Probe:
    command = [str(python), "-m", "tests.matrix.probe"]
    done = completed(command, limit=120, env=dict(env), cwd=store.ROOT)
    if done.returncode:
        raise SystemExit(done.stderr)
    return placeless(json.loads(done.stdout))


def placeless(probe: Probe) -> Probe:
    """``probe`` without where its packages lie, which differs from machine to machine."""
    for patch in probe["patches"].values():
        for target, look in patch["targets"].items():
            package = re.escape(target.partition(".")[0])
            look["reason"] = re.sub(rf"/\S*/(?={package}/)", "", look["reason"])
    return probe


def record(stacks: Sequence[Stack]) -> int:
    for stack in stacks:
        write(SHAPES / f"{stack.name}.csv", in_stack(stack))
        print(f"recorded {stack.name}", flush=True)
    declared = envs.read_stacks()
    for path in SHAPES.glob("*.csv"):
        if path.stem not in declared:
            path.unlink()
    return 0


# --- what is on record --------------------------------------------------------------------------


def shapes(folder: Path = SHAPES) -> dict[str, Probe]:
    """What was seen on each recorded stack, in the order in which the stacks are declared.

    Raises:
        table.Broken: a file is not whole, or holds what no probe could have said.
    """
    return {
        name: read(folder / f"{name}.csv") for name in envs.read_stacks() if (folder / f"{name}.csv").exists()
    }


def read(path: Path) -> Probe:
    again = f"python -m tests.matrix.drift --record {path.stem}"
    found: Probe = {"versions": {}, "patches": {}}
    for number, line in table.read(path, COLUMNS, again):
        if line["patch"] == VERSIONS:
            found["versions"] = _named(line["parts"])
            continue
        if line["says"] not in SAYS or line["gate"] not in ("open", "closed"):
            what = f"{line['gate']!r} and {line['says']!r} are not a gate and a verdict"
            raise table.Broken(path, number, what, again)
        gate = {"gate": line["gate"] == "open", "why": line["why"], "targets": {}}
        patch = found["patches"].setdefault(line["patch"], gate)
        about = {name: line[name] for name in ("says", "reason")}
        patch["targets"][line["target"]] = {**about, "parts": _named(line["parts"])}
    return found


def write(path: Path, probe: Probe) -> None:
    lines = [(VERSIONS, "", "", "", "", "", _joined(probe["versions"]))]
    for name, patch in sorted(probe["patches"].items()):
        gate = ("open" if patch["gate"] else "closed", patch["why"])
        for target, look in sorted(patch["targets"].items()):
            lines.append((name, target, *gate, look["says"], look["reason"], _joined(look["parts"])))
    table.write(path, COLUMNS, lines)


def _joined(values: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))


def _named(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split())}


# --- the report ---------------------------------------------------------------------------------


def report(seen: Probe, recorded: Mapping[str, Probe], entries: Mapping[str, Any]) -> list[str]:
    """One line a finding: ACT (something to do), READ (a target changed), ok."""
    lines = []
    for name in entries:
        found = seen["patches"].get(name)
        if found is None:
            continue
        lines += _bounds(name, found, recorded)
        for target in found["targets"]:
            lines += _judge(found, target, _nearest(seen["versions"], recorded, name, target), name)
    return sorted(lines) or ["no patch has a target here"]


def _bounds(name: str, found: Probe, recorded: Mapping[str, Probe]) -> list[str]:
    """Whether the bug is gone from all targets while the gate is still open."""
    looks = [look for look in found["targets"].values() if look["says"] != "absent"]
    if not found["gate"] or not looks or any(look["says"] != "no bug" for look in looks):
        return []
    last = [stack for stack, probe in recorded.items() if name in probe["patches"] and _has_bug(probe, name)]
    if not last:
        return []  # what decides lies in the user's own files
    reason = looks[0]["reason"]
    return [f"ACT  {name}: gone ({reason}); last seen on {last[-1]}. Bound it (tests.matrix.bisect)"]


def _has_bug(probe: Probe, name: str) -> bool:
    return any(look["says"] == "bug" for look in probe["patches"][name]["targets"].values())


def _judge(found: Probe, target: str, nearest: tuple[str, Probe], name: str) -> list[str]:
    look = found["targets"][target]
    says, where = look["says"], f"{name} ({target})"
    if says == "absent":
        return []
    lines = []
    bounded = not found["gate"] and found["why"].startswith(owner(target))
    if says == "unrecognised":
        # Where a bound is set already, this shape was looked at.
        todo = "READ" if bounded else "ACT "
        lines.append(f"{todo} {where}: shape unknown, the patch stays off: {look['reason']}")
    elif says == "bug" and bounded and not _gone_elsewhere(found):
        lines.append(f"ACT  {where}: the code shows the bug and the gate is closed: {found['why']}")
    stack, before = nearest
    for part, digest in look["parts"].items():
        if part in before and before[part] != digest:
            change = f"{part} is not what it was on {stack}"
            lines.append(f"READ {where}: {change} ({before[part]} -> {digest}); verdict: {says}")
    return lines or [f"ok   {where}: {says}, gate {'open' if found['gate'] else 'closed'}"]


def _gone_elsewhere(found: Probe) -> bool:
    """Whether another target shows that the bug is gone: one of several may look as it always did."""
    return any(look["says"] == "no bug" for look in found["targets"].values())


def owner(target: str) -> str:
    top = target.partition(".")[0]
    return next((name for name, module in store.entries().modules.items() if module == top), top)


def _nearest(
    seen: Mapping[str, str], recorded: Mapping[str, Probe], name: str, target: str
) -> tuple[str, Probe]:
    """The recorded stack nearest below, by the package that holds ``target``, and its parts there."""
    holder, found = owner(target), [(Version("0"), "", Probe())]
    for stack, probe in recorded.items():
        theirs = probe["versions"].get(holder)
        look = probe["patches"].get(name, {"targets": {}})["targets"].get(target)
        if look and theirs and holder in seen and Version(theirs) <= Version(seen[holder]):
            found.append((Version(theirs), stack, look["parts"]))
    _, stack, parts = max(found, key=lambda each: each[0])
    return stack, parts


# --- the registry -----------------------------------------------------------------------------


def releases(distribution: str) -> list[str]:
    """Every final release the registry offers, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", distribution]
    done = completed(command, limit=120)
    listed = next(line for line in done.stdout.splitlines() if line.startswith("Available versions:"))
    found = [Version(text) for text in listed.partition(":")[2].split(",")]
    return [str(version) for version in sorted(found) if not version.is_prerelease]


if __name__ == "__main__":
    sys.exit(main())
