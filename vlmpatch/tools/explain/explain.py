"""``python -m vlmpatch explain``: a patch, a failure, a code of doctor's, or a log, to words."""

from __future__ import annotations

import glob
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

from vlmpatch.catalog.environment import suggestion
from vlmpatch.catalog.model import Catalog
from vlmpatch.tools import codes
from vlmpatch.tools.explain import answer_page, failures, pages
from vlmpatch.tools.explain.answers import Answer, answer, tells
from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.explain.inputs import opened
from vlmpatch.tools.view.language import Words

LARGE = 64 << 20  # from here on progress is shown
LOGS = (".log", ".txt", ".out", ".err")  # what a folder of logs holds
_LOG = re.compile(r"\.(?:log|txt|out|err)(?:[.-]\d{1,14}){0,3}(?:\.(?:gz|bz2|xz|zip))?$")
MOST = 1024
SENTENCE = 6  # signs of a language that has no spaces between its words


def explain(asked: Sequence[str], catalog: Catalog, say: Words, as_json: bool = False) -> int:
    """Print the page of each patch, failure or code of ``asked``, and what the logs among them show.

    Args:
        asked: ids; logs, folders of them, patterns of their names, ``-`` for standard input; or the words of
            a message. Nothing is standard input too.
        catalog: what is known.
        say: the language.
        as_json: print data instead of a page.

    Returns:
        0 when something was explained, 1 when the logs show nothing known, 2 when something is neither.
    """
    if not asked and sys.stdin.isatty():
        wanted = say(
            "explain what? A log, a failure (F3), a patch id, or a message; - reads what is piped in."
        )
        print(wanted, file=sys.stderr)
        return 2
    for problem in failures.every(catalog).problems:  # else a failure that cannot be read is one unknown
        print(f"{problem.where}: {say.told(f'{problem.what}. {problem.remedy}')}", file=sys.stderr)
    found = {
        each: called for each in asked if not _holds_logs(each) and (called := pages.called(each, catalog))
    }
    rest = [each for each in asked if each not in found]
    if found and not rest:
        _show([], list(found.values()), catalog, say, as_json)
        return 0
    try:
        given = [_of_message(rest, catalog, say)] if _is_message(rest) else _of_logs(rest, catalog, say)
    except OSError as error:
        name = str(error.filename or " ".join(rest))
        hint = suggestion(name, [*catalog.entries, *failures.every(catalog).known, *codes.read()])
        sentence = "'{name}' is no patch and no failure, and as a log: {why}. {hint}"
        said = {
            "name": printable(name, 80),
            "why": say.told(error.strerror or ""),
            "hint": say.told(hint.strip()),
        }
        print(say(sentence, **said).rstrip(), file=sys.stderr)
        return 2
    _show(given, list(found.values()), catalog, say, as_json)
    return 0 if any(each.ours for each in given) else 1


def _show(
    logs: list[Answer], known: Sequence[pages.Known], catalog: Catalog, say: Words, as_json: bool
) -> None:
    """Print what is known by its name, then what the logs show; as data a list where it is more than one."""
    if as_json:
        every = [
            *(pages.data(each, catalog, say) for each in known),
            *(answer_page.data(each, say) for each in logs),
        ]
        print(json.dumps(every[0] if len(every) == 1 else every, ensure_ascii=False, indent=2))
        return
    for each in known:
        pages.page(each, catalog, say).show(sys.stdout)
    for answered in logs:
        answer_page.page(answered, say).show(sys.stdout)


def _is_message(asked: Sequence[str]) -> bool:
    """Whether these words are a message that was pasted, and no names of logs."""
    if any(each == "-" or each.endswith(LOGS) or os.path.exists(each) or glob.glob(each) for each in asked):
        return False
    text = " ".join(asked)
    return len(text.split()) > 2 or (not text.isascii() and len(text) >= SENTENCE)


def _of_message(words: Sequence[str], catalog: Catalog, say: Words) -> Answer:
    return answer(io.BytesIO(" ".join(words).encode(errors="replace")), catalog, say, None)


def _of_logs(names: Sequence[str], catalog: Catalog, say: Words) -> list[Answer]:
    """An answer for each failure that the logs show, by the log that ended first: its rank died first.

    Ranks of one run mostly echo what one of them died of. An echo, a hint or an unknown error is the answer
    where no log shows a failure itself, and then that of the log that says most.

    Raises:
        OSError: one of them cannot be read, or a folder holds no log.
    """
    if not names or list(names) == ["-"]:
        return [answer(sys.stdin.buffer, catalog, say, None)]
    logs = sorted({log for name in names for log in _found(name)}, key=os.path.getmtime)[:MOST]
    alone = len(logs) == 1 and logs[0] == names[0]
    folder = names[0] if len(names) == 1 and os.path.isdir(names[0]) else ""
    answers = []
    for log in logs:
        given = _of_file(log, catalog, say)
        shown_as = os.path.relpath(log, folder) if folder else log
        answers.append(
            given if alone else given._replace(file="/".join(filter(None, (shown_as, given.file))))
        )
    shown: dict[str, Answer] = {}
    for given in answers:
        if (hit := given.diagnosis.hit) and hit.symptom.kind == "error":
            shown.setdefault(hit.failure.id, given)
    return sorted(shown.values(), key=tells) or [min(answers, key=tells)]


def _found(name: str) -> list[str]:
    """The logs that ``name`` stands for: a file, those in a folder, or those that a pattern names."""
    if os.path.isdir(name):
        paths = [os.path.join(root, file) for root, _, files in os.walk(name) for file in files]
        if logs := [path for path in paths if _LOG.search(path) and os.path.isfile(path)]:
            return logs
        raise FileNotFoundError(2, f"no file in it ends in {', '.join(LOGS)}", name)
    named = [] if os.path.exists(name) else filter(os.path.isfile, glob.glob(name, recursive=True))
    if paths := [*named]:
        return paths
    os.stat(name)
    return [name]


def _holds_logs(name: str) -> bool:
    """Whether a log lies there; an id in capitals, as it is printed, is the failure all the same."""
    try:
        return not name.isupper() and bool(_found(name))
    except OSError:
        return False


def _of_file(path: str, catalog: Catalog, say: Words) -> Answer:
    with opened(path) as handle:
        return answer(handle, catalog, say, _progress(handle))


def _progress(handle: BinaryIO) -> Callable[[int], None] | None:
    size = os.fstat(handle.fileno()).st_size
    if size < LARGE or not sys.stderr.isatty():
        return None

    def tell(done: int) -> None:
        if done >= size:
            print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
        elif done % (16 << 20) == 0:
            print(f"\r{100 * done // size} % of {size >> 20} MB", end="", file=sys.stderr, flush=True)

    return tell
