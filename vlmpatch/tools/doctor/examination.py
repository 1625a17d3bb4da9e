"""What doctor looks at, and what it finds.

Static: the targets' sources are read where they lie, and nothing that is patched is imported. So the
verdict takes a fraction of a second, and "applied" is never said; that word belongs to the process
that trains (``vlmpatch.status()`` there, or VLMPATCH_LOG=info).
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vlmpatch.catalog import environment, sets
from vlmpatch.catalog.model import Catalog, Entry, PatchSet, Problem, State, Status
from vlmpatch.engine import locked
from vlmpatch.engine.outlook import Outlook, waits
from vlmpatch.gate import versions
from vlmpatch.gate.verdict import ranges
from vlmpatch.lockfile.lock import Unreadable
from vlmpatch.tools.doctor import engines, installation, models, remote, verified
from vlmpatch.tools.doctor.acting import Group, groups
from vlmpatch.tools.doctor.engines import Choice
from vlmpatch.tools.doctor.models import Described
from vlmpatch.tools.doctor.packages import Package, elsewhere, package
from vlmpatch.tools.explain import failures
from vlmpatch.tools.findings import Finding, ordered
from vlmpatch.tools.lint import command, configuration, understood
from vlmpatch.tools.lint.context import Around, ended, inside
from vlmpatch.tools.lint.launch_config import LaunchConfig
from vlmpatch.tools.lint.model import Model
from vlmpatch.tools.lint.model import read as read_model
from vlmpatch.tools.lint.rules import lint
from vlmpatch.tools.lint.understood import Understood
from vlmpatch.tools.view.language import Words

_PACKAGES = ("torch", "transformers", "deepspeed", "peft", "accelerate", "trl", "ms-swift")
_ASKED = {"liger-kernel": "liger_kernel"}  # of which a rule of lint asks the version; no patch does
_LAUNCH = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "PYTHONPATH",
    "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "NCCL_DEBUG", "TORCH_DISTRIBUTED_DEBUG",
    "HF_HUB_OFFLINE",
)  # fmt: skip


class Asked(NamedTuple):
    """What doctor is asked to look at besides the environment."""

    model: str = ""
    ds_config: str = ""
    command: str = ""


class Findings(NamedTuple):
    """All that doctor knows; every view is made from it alone."""

    packages: dict[str, Package]
    patches: tuple[Status, ...]
    findings: tuple[Finding, ...]
    environment: dict[str, str]
    launches: tuple[Understood, ...] | None = None  # None where no command is asked about
    groups: tuple[Group, ...] = ()  # of the patches that will act
    model: Described | None = None  # None where no model is named
    engines: tuple[Choice, ...] = ()  # what each engine comes to, where one is
    sets: tuple[PatchSet, ...] = ()  # of others, switched on

    @property
    def acting(self) -> list[Status]:
        """The patches that will act; ``status()`` calls them armed."""
        return [status for status in self.patches if _acts(status)]

    @property
    def waiting(self) -> list[Status]:
        """Those that wait for a module beside a script; ``status()`` calls them armed too."""
        return [status for status in self.patches if status.state is State.ARMED and waits(status)]

    @property
    def sound(self) -> bool:
        """Whether nothing that is needed is out of reach; the exit code says the same."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def spotless(self) -> bool:
        """Whether there is nothing to warn of either; the exit code under ``--strict``."""
        return all(finding.severity == "note" for finding in self.findings)


def examine(
    catalog: Catalog | None = None,
    asked: Asked | None = None,
    say: Words | None = None,
    revisions: bool = True,
) -> Findings:
    """Look at this environment.

    Args:
        catalog: what is known; the installed ``compat.toml`` when not given.
        asked: a model, a configuration, a launch line to look at too.
        say: the language of the findings.
        revisions: say which revision of a patch was verified, which takes most of the time.
    """
    catalog, asked, say = catalog or sets.known(os.environ), asked or Asked(), say or Words("en")
    chosen = environment.read(os.environ, catalog.entries, catalog.renamed)
    others = sorted({name for entry in catalog.entries.values() for name in entry.requires} - set(_PACKAGES))
    packages = {name: package(name, catalog.modules.get(name, name)) for name in (*_PACKAGES, *others)}
    known = {name: found.version for name, found in packages.items()}
    known |= {name: versions.installed(name, module).version for name, module in _ASKED.items()}
    expected = locked.outlooks(catalog, chosen.disable)
    patches = tuple(
        _with_record(expected[e.id].status, e, known, revisions) for e in catalog.entries.values()
    )
    model = read_model(asked.model) if asked.model else None
    acting = [status.id for status in patches if _acts(status)]
    elsewhere_ = {} if known["torch"] else _ending(catalog, catalog.entries)
    around = Around(None, known, _ending(catalog, acting), say, elsewhere_)
    known_failures = failures.every(catalog)
    broken = [*catalog.problems, *known_failures.problems, *ranges(catalog)]
    findings = [
        *_python(packages, say),
        *_unhad(patches, say),
        *_problems(broken, "D02", "error", say),
        *_problems(chosen.problems, "D03", "warning", say),
        *_copies(packages, say),
        *_unused(catalog, say),
        *_altered(installation.compare(), say),
        *_unlocked(chosen, catalog, expected, say),
        *_remote(remote.cache(os.environ), around, "D06"),
        *_model(model, around),
    ]
    told = _launch(asked, around._replace(model=None if isinstance(model, str) else model))
    findings += told.findings
    launched = {name: os.environ[name] for name in sorted(os.environ) if tells(name)}
    grouped = groups(
        catalog,
        known_failures.known,
        acting,
        {id_: finding.link.split()[-1] for finding in told.findings for id_ in finding.patches},
        told.launches,
        _named(model, told.launches),
    )
    findings = ordered(findings)
    described = (
        None
        if isinstance(model, str) or model is None
        else models.described(model, catalog, patches, findings, known, say)
    )
    compared = _engines(described.model, told, around) if described else ()
    return Findings(
        packages,
        patches,
        tuple(findings),
        launched,
        told.seen,
        grouped,
        described,
        tuple(compared),
        tuple(catalog.sets.values()),
    )


def _engines(model: Model, told: _Told, around: Around) -> Iterator[Choice]:
    """What each engine comes to, for the tuning of the launches, or for both kinds where there is none."""
    asked = dict.fromkeys("lora" if launch.lora else "full" for launch in told.launches)
    for tuning in asked or ("lora", "full"):
        yield from engines.choices(tuning, model, around)


def _named(model: Model | str | None, launches: Sequence[LaunchConfig]) -> list[str]:
    """What is known of the model's kind: its configuration's word, and the names in launches."""
    kinds = [model.kind] if isinstance(model, Model) else []
    return kinds + [launch.model.value for launch in launches if launch.model]


def _acts(status: Status) -> bool:
    return status.state is State.ARMED and not waits(status)


def tells(name: str) -> bool:
    """Whether the environment variable ``name`` bears on a launch."""
    return name in _LAUNCH or name.startswith("VLMPATCH_")


def _with_record(
    status: Status, entry: Entry, installed: Mapping[str, str | None], revisions: bool
) -> Status:
    if status.state is not State.ARMED or waits(status):
        return status
    proven = verified.proofs().get(entry.id, [])
    revision = verified.revision(entry) if revisions else None
    said = verified.sentence(entry, proven, installed, revision)
    return status._replace(reason=f"{status.reason}; {said}")


def _python(packages: Mapping[str, Package], say: Words) -> Iterator[Finding]:
    if packages["torch"].version is not None:
        return
    title = say("There is no torch here: this is probably the wrong Python.")
    near = elsewhere(os.environ)
    fix = (
        f"{near[0]} -m vlmpatch doctor"
        if near
        else say("activate the environment you train in, then run this again")
    )
    yield Finding("D01", "error", title, sys.executable, fix)


def _unhad(patches: tuple[Status, ...], say: Words) -> Iterator[Finding]:
    for status in patches:
        if status.state in (State.FAILED, State.CONFLICT):
            title = say("{id} is needed here and is not available.", id=status.id)
            link = f"python -m vlmpatch explain {status.id}"
            fix = say("upgrade vlmpatch, or report this")
            yield Finding("D04", "error", title, say.told(status.reason), fix, link)


def _problems(problems: Iterable[Problem], kind: str, severity: str, say: Words) -> Iterator[Finding]:
    for problem in problems:
        title = say("This setting is to be corrected.")
        what = f"{problem.where}{say.mark(': ')}{say.told(problem.what)}"
        yield Finding(kind, severity, title, what, say.told(problem.remedy))


def _copies(packages: Mapping[str, Package], say: Words) -> Iterator[Finding]:
    for name, found in packages.items():
        if found.remark:
            title = say("The version of {name} is in doubt.", name=name)
            fix = f"pip install --force-reinstall --no-deps {name}"
            yield Finding("D05", "warning", title, say.told(found.remark), fix)
        if found.others:
            title = say("There are several copies of {name}; the first is used.", name=name)
            yield Finding("D09", "warning", title, f"{found.folder}, {', '.join(found.others)}", "")


def _unused(catalog: Catalog, say: Words) -> Iterator[Finding]:
    for name in sorted(sets.installed().keys() - catalog.sets.keys()):
        title = say("A patch set of others is installed and not switched on.")
        yield Finding("D11", "note", title, name, f"VLMPATCH_SETS={name}")


def _altered(files: installation.Comparison, say: Words) -> Iterator[Finding]:
    if not files.sound:
        title = say("Files of vlmpatch are not as they were installed.")
        fix = "pip install --force-reinstall --no-deps vlmpatch"
        yield Finding("D10", "error", title, say.told(files.sentence()), fix)


def _unlocked(
    chosen: environment.Settings, catalog: Catalog, expected: Mapping[str, Outlook], say: Words
) -> Iterator[Finding]:
    """What VLMPATCH_LOCK would warn of in a training, or refuse under VLMPATCH_STRICT."""
    if not chosen.lock:
        return
    fix = f"python -m vlmpatch lock --diff --file {shlex.quote(chosen.lock)}"
    try:
        kinds = locked.by_kind(locked.differences(chosen.lock, catalog, expected))
        seen = say.mark("; ").join(f"{say(words)}{say.mark(': ')}{names}" for words, names in kinds)
    except Unreadable as error:
        seen, fix = str(error), ""
    if seen:
        title = say("What acts here is not what VLMPATCH_LOCK names.")
        yield Finding("D12", "error" if chosen.strict else "warning", title, seen, fix)


def _remote(folder: str, around: Around, kind: str) -> Iterator[Finding]:
    say = around.say
    titles = {
        "old-format": say(
            "A model's own code has checkpointing in the format from before transformers 4.35."
        ),
        "reentrant-by-default": say("A model's own code calls checkpoint() without use_reentrant."),
        "says-reentrant": say("A model's own code says use_reentrant=True."),
        "writes-into-embeddings": say("A model's own code writes image features into the embeddings."),
        "no-post-init": say("A model's own code never calls post_init(), which transformers 5 needs."),
    }
    failures_ = {"writes-into-embeddings": "F13", "says-reentrant": "F22", "no-post-init": "D"}
    told: set[tuple[str, str, int]] = set()
    for path in remote.files(folder):
        for trait in remote.traits(path):
            if (seen := (trait.name, os.path.basename(path), trait.line)) in told:
                continue  # the same file, cached once more for another transformers
            told.add(seen)
            if trait.name == "no-post-init" and not inside(around, "transformers", ">=5.0.0.dev0"):
                continue
            failure = failures_.get(trait.name, "F6")
            link = f"python -m vlmpatch explain {failure}"
            patches = around.ending.get(failure, ())
            fix = ended(around, failure, patches) if patches else ""
            yield Finding(kind, "note", titles[trait.name], f"{path}:{trait.line}", fix, link, patches)


def _model(model: Model | str | None, around: Around) -> Iterator[Finding]:
    if isinstance(model, str):
        yield Finding("D07", "error", around.say("The model cannot be read."), model)
    elif model and model.remote:
        yield from _remote(model.folder, around, "D08")


class _Told(NamedTuple):
    """What the command came to."""

    launches: tuple[LaunchConfig, ...] = ()
    seen: tuple[Understood, ...] | None = None
    findings: tuple[Finding, ...] = ()


def _launch(asked: Asked, around: Around) -> _Told:
    """What was understood of the command, and what goes wrong with each launch of it."""
    if not any(asked):
        return _Told()
    read_ = command.read(asked.command, around.say("the command"))
    launches = read_.launches or (LaunchConfig(),)
    for launch in launches:
        if asked.ds_config:
            configuration.from_file(asked.ds_config, launch)
            launch.say("deepspeed", asked.ds_config, "--ds-config")
    launches[0].problems.extend(read_.problems)
    each = [lint(launch, around) for launch in launches]
    told = dict.fromkeys(finding for findings in each for finding in findings)
    seen = tuple(understood.of(launch, found) for launch, found in zip(read_.launches, each, strict=False))
    read_from = launches if read_.launches or asked.ds_config else ()
    return _Told(tuple(read_from), seen if asked.command else None, tuple(told))


def _ending(catalog: Catalog, ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The patches ``ids`` by the failures they end."""
    ending: dict[str, tuple[str, ...]] = {}
    for id_ in ids:
        for failure in catalog.entries[id_].failures:
            ending[failure] = (*ending.get(failure, ()), id_)
    return ending
