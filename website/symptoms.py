"""What ``assets/explain.js`` needs to know: the symptoms of ``failures/``, and how ``explain`` reads lines.

Patterns, tables and limits are those of ``vlmpatch.tools.explain``, taken from there and written as
JavaScript reads them, so that nothing is said twice.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.generate.failures import CATALOG, KNOWN
from vlmpatch.tools.explain import diagnose, failures, grounds, lines, logs, messages, vocabulary
from vlmpatch.tools.explain import symptoms as language
from vlmpatch.tools.explain.failures import Failure, Symptom
from vlmpatch.tools.explain.grounds import Ground
from vlmpatch.tools.explain.symptoms import Pattern

# Inside a character class, of text and of bytes. JavaScript's own \w and \d are ASCII, its \s is not.
TEXT = {"w": r"\p{L}\p{N}_", "d": r"\p{Nd}", "s": r"\s\x1c-\x1f\x85", "n": r"\n"}
BYTES = {"w": r"A-Za-z0-9_", "d": "0-9", "s": r" \t\n\r\f\v", "n": r"\n"}
_TOKEN = re.compile(r"\\x[0-9a-fA-F]{2}|\\.|.", re.DOTALL)
_READ = (
    *("_BEGINS", "_BREAK", "_ENTITY", "_ESCAPE", "_FLAT", "_NUMBER", "_SHARED", "_TAG", "_WITHIN"),
    *("_ESCAPED", "_BACKSLASH", "_OPENS", "_DIGITS", "_TRACED", "_FENCE", "_PRINTED"),
    *("_BARE_EXCEPTION", "_COLOUR", "_EXCEPTION", "_FRAME", "HEADED"),
    *("_COLLECTIVE", "_NAMED", "_PACKAGES", "_RETYPED", "_VERSION", "_SIZE"),
    *(
        "_CALL",
        "_KEY",
        "_QUOTED",
        "_CALLED",
        "_CLASS",
        "_SAYS",
        "_MARKED",
        "_POINTED",
        "_TITLED",
        "_RAISED",
        "_POINTS",
        "_RAISES",
        "_BEGINS_TO_RAISE",
        "_TEXT",
        "_SETTING",
    ),
)

_LIMITS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (logs, ("ENDS",)),
    (messages, ("LINES", "SOURCES", "WIDE", "LOOSE", "BELOW", "PREFIXES", "PREFIX", "REACH")),
    (diagnose, ("KEPT", "TEXT", "ALIKE", "GONE_ON", "COLLECTIVES", "APART", "TITLE", "NAMES")),
    (language, ("RUN", "LEFT", "NAMED", "WRAPPED")),
    (lines, ("LINE", "NARROWEST", "WIDEST", "COLUMNS", "BROKEN")),
    (vocabulary, ("NEAR", "SOON")),
    (grounds, ("GOES_ON", "FOLDERS")),
)


def script() -> str:
    """The file that a page loads before its first answer."""
    return f"window.vlmpatchKnown = {json.dumps(known(), ensure_ascii=False, separators=(',', ':'))};\n"


def known() -> dict[str, Any]:
    """Everything, as JSON."""
    return {
        "failures": [_failure(each) for each in KNOWN.known.values()],
        "expressions": _expressions(),
        "prefixes": [[javascript(shape), names] for shape, names in messages._PREFIXES],
        "folded": {chr(sign): new or "" for sign, new in language._FOLDED.items()},
        "limits": {name: getattr(module, name) for module, names in _LIMITS for name in names},
        "words": [word.decode() for word in logs.WORDS],
        "ownWords": [word.decode() for word in logs.OWN_WORDS],
        "ownLines": messages.OWN_LINES,
        "begun": diagnose._BEGUN,
        "titleFails": vocabulary.read().stems(diagnose._FAILS),
        "titleWarns": vocabulary.read().stems(diagnose._WARNS),
        "ownTraces": diagnose._OWN_TRACES,
        "chained": messages._CHAINED,
        "launchers": messages._LAUNCHERS,
        "saysAll": sorted(diagnose._SAYS_ALL),
        "grounds": [_ground(each) for each in grounds.read().listed],
        "parts": grounds.read().parts,
        "partsAlone": grounds.read().within,
        "saysOf": grounds.read().says_of,
        "vague": sorted(grounds._VAGUE),
        "anyError": grounds._ANY,
        "brackets": grounds._BRACKETS,
        "engines": {name: each._asdict() for name, each in vocabulary.read().engines.items()},
    }


def _expressions() -> dict[str, str]:
    found = {}
    for name in _READ:
        module = next(
            each for each in (lines, messages, diagnose, language, vocabulary, grounds) if hasattr(each, name)
        )
        found[name.lstrip("_")] = javascript(getattr(module, name))
    return found | {"SYMPTOM_FRAME": javascript(failures._FRAME)}


def javascript(expression: re.Pattern[Any]) -> str:
    """``expression`` as JavaScript's ``RegExp`` takes it, with the flag ``u`` where it is of text."""
    of_bytes = isinstance(expression.pattern, bytes)
    classes = BYTES if of_bytes else TEXT
    source = expression.pattern.decode("latin-1") if of_bytes else expression.pattern
    made, inside = [], False
    for token in _TOKEN.findall(source):
        if token[0] == "\\" and token[1:] in classes:
            made.append(classes[token[1:]] if inside or token == r"\n" else f"[{classes[token[1:]]}]")
        elif token in (r"\"", r"\'", r"\-") and not (inside and token == r"\-"):
            made.append(token[1])
        elif token == "." and not inside:
            made.append(r"[^\n]")
        else:
            inside = token == "[" or (inside and token != "]")
            made.append(token)
    return "".join(made)


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "id": failure.id,
        "foreign": failure.foreign,
        "title": failure.title,
        "cause": failure.cause,
        "advice": failure.advice,
        "patches": [entry.id for entry in failure.patches(CATALOG)],
        "symptoms": [_symptom(each) for each in failure.symptoms],
    }


def _symptom(symptom: Symptom) -> dict[str, Any]:
    written: dict[str, Any] = {
        "kind": symptom.kind,
        "own": symptom.own,
        "numbers": symptom.numbers,
        "ranks": symptom.ranks,
        "seen": symptom.seen,
        "unseen": symptom.unseen,
        "told": symptom.told,
        "under": symptom.under,
        "patches": symptom.patches,
    }
    for name in ("every", "some", "none", "frames"):
        written[name] = [_pattern(each) for each in getattr(symptom, name)]
    return {name: value for name, value in written.items() if value}


def _ground(ground: Ground) -> dict[str, Any]:
    patterns = {name: [_pattern(each) for each in getattr(ground, name)] for name in ("says", "none")}
    return ground._asdict() | patterns


def _pattern(pattern: Pattern) -> list[Any]:
    return [pattern.head, *pattern.rest]
