"""What a log shows: one failure, and which of its patches are for the versions it ran with."""

from __future__ import annotations

import io
import sysconfig
from collections.abc import Callable, Mapping
from typing import BinaryIO, NamedTuple

from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.gate import versions
from vlmpatch.tools.explain import failures
from vlmpatch.tools.explain.diagnose import Diagnosis, Hit, diagnose
from vlmpatch.tools.explain.inputs import Text, texts
from vlmpatch.tools.view.language import Words

_EVERYWHERE = ("torch", "transformers", "deepspeed", "peft", "accelerate")


class Applies(NamedTuple):
    """Whether a patch is for the versions of a log: ``applies``, ``not here`` or ``perhaps``."""

    id: str
    verdict: str
    reason: str


def applies(entry: Entry, log: Diagnosis, modules: Mapping[str, str], say: Words) -> Applies:
    """Hold the ranges of ``entry`` against the versions in a log, or those installed here.

    What is installed here says nothing of a log that names versions itself, or that is from another place.
    """
    reasons, verdict = [], "applies"
    here = not log.versions and (not log.folders or not log.folders.isdisjoint(_own_folders()))
    for name, specifier in entry.requires.items():
        module = modules.get(name, name)
        version, origin = log.versions.get(name), say("from the log")
        if version is None and here:
            version, origin = versions.installed(name, module).version, say("in this environment")
        if version is None and name not in _EVERYWHERE and not _runs(module, log):
            reason = say("nothing of {name} shows in the log, and it is not installed here", name=name)
            return Applies(
                entry.id, "not here", reason if here else say("nothing of {name} shows in the log", name=name)
            )
        if version is None:
            verdict = "perhaps"
            reasons.append(f"{name} {specifier}")
            continue
        try:
            inside = versions.satisfies(version, specifier)
        except ValueError:
            verdict = "perhaps"
            reasons.append(f"{name} {specifier}")
            continue
        if not inside:
            return Applies(entry.id, "not here", f"{name} {version} ({origin}), {specifier}")
        reasons.append(f"{name} {version} ({origin})")
    return Applies(entry.id, verdict, ", ".join(reasons))


def _own_folders() -> set[str]:
    """Where the packages of this environment lie."""
    return {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}


def _runs(module: str, log: Diagnosis) -> bool:
    """Whether a frame of the message that decides lies in ``module``."""
    return log.first is not None and f"/{module.replace('.', '/')}/" in log.first.text


class Answer(NamedTuple):
    """A diagnosis, and what follows from it: ``why`` in both languages, ``file`` where there were several.

    ``ends`` are the patches whose words in the log are about it; ``instead`` what the file is where it is no
    text.
    """

    diagnosis: Diagnosis
    patches: tuple[Applies, ...]
    why: tuple[str, str] = ("", "")
    file: str = ""
    ends: tuple[str, ...] = ()
    instead: str = ""

    @property
    def ours(self) -> Hit | None:
        """The failure, if it is one that vlmpatch is about."""
        hit = self.diagnosis.hit
        return hit if hit and not hit.failure.foreign else None


def answer(stream: BinaryIO, catalog: Catalog, say: Words, progress: Callable[[int], None] | None) -> Answer:
    """Read a log and answer with one failure, and which of its patches are for those versions."""
    answers = [_of_text(text, catalog, say, progress) for text in texts(stream)]
    return min(answers or [_of_text(Text(io.BytesIO(), instead="empty"), catalog, say, None)], key=tells)


def _of_text(text: Text, catalog: Catalog, say: Words, progress: Callable[[int], None] | None) -> Answer:
    stream = io.BytesIO() if text.instead else text.stream
    diagnosis = diagnose(stream, failures.every(catalog), progress)
    return _concluded(diagnosis, catalog, say)._replace(file=text.name, instead=text.instead)


def _concluded(diagnosis: Diagnosis, catalog: Catalog, say: Words) -> Answer:
    if diagnosis.hit is None or diagnosis.hit.failure.foreign:
        return Answer(diagnosis, ())
    entries = diagnosis.hit.failure.patches(catalog, diagnosis.hit.symptom)
    order = ("applies", "perhaps", "not here")
    found = [applies(entry, diagnosis, catalog.modules, say) for entry in entries]
    why = diagnosis.hit.failure.cause
    if diagnosis.hit.symptom.patches and entries:
        why = entries[0].summary, entries[0].summary_zh  # says more than what many have in common
    patches = tuple(sorted(found, key=lambda each: order.index(each.verdict)))
    ends = tuple(f"vlmpatch [{entry.id}]" for entry in diagnosis.hit.failure.patches(catalog))
    return Answer(diagnosis, patches, why, ends=ends)


def tells(given: Answer) -> int:
    """Least for the answer that says most."""
    hit = given.diagnosis.hit
    if hit is None:
        return 1 if given.diagnosis.first else 9
    kinds = {"error": 0, "echo": 2, "hint": 4, "told": 6}  # one that is `perhaps` only is no hit
    return kinds[hit.symptom.kind] + hit.failure.foreign
