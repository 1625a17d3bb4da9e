"""The command line: ``python -m vlmpatch doctor | list | explain | run``."""

from __future__ import annotations

import argparse
import os
import sys

from vlmpatch import __version__


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 fine, 1 something was found, 2 the command line is wrong.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.verb == "run":
        command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
        if not command:
            parser.error("run what? python -m vlmpatch run torchrun …")
        from vlmpatch.tools.run import run

        return run(command)
    from vlmpatch.catalog import default_path, read

    catalog = read(default_path())
    if asked.verb == "list":
        for entry in catalog.entries.values():
            needs = ", ".join(f"{name} {specifier}" for name, specifier in entry.requires.items())
            print(f"{entry.id}  [{entry.severity}; {needs}]\n  {entry.summary}\n  {entry.summary_zh}")
        for problem in catalog.problems:
            print(problem, file=sys.stderr)
        return 1 if catalog.problems else 0
    if asked.verb == "explain":
        from vlmpatch.tools.explain import explain
        from vlmpatch.tools.words import Words, language

        return explain(asked.what, catalog, Words(asked.lang or language(os.environ)), asked.json)
    from vlmpatch.tools import doctor

    findings = doctor.examine(catalog)
    print(doctor.text(findings))
    return 0 if findings.sound else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vlmpatch")
    parser.add_argument("--version", action="version", version=f"vlmpatch {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("doctor", help="what is installed, what would be patched here, and why")
    verbs.add_parser("list", help="every patch vlmpatch knows")
    explain = verbs.add_parser("explain", help="what a patch does, or what a log shows")
    explain.add_argument("what", help="a log file, - for standard input, a failure (F3) or a patch id")
    explain.add_argument("--json", action="store_true", help="the answer as data")
    explain.add_argument(
        "--lang", choices=("en", "zh"), help="the language; that of the locale, if not given"
    )
    run = verbs.add_parser("run", help="run a command with vlmpatch active in every Python process below it")
    run.add_argument("command", nargs=argparse.REMAINDER, help="the command as you would type it")
    return parser


def entry_point() -> int:
    """``main`` for the shell: a reader (head, less) that has seen enough is no error."""
    from vlmpatch.tools.page import forgiving

    forgiving()
    try:
        return main()
    except BrokenPipeError:
        sys.stderr.close()
        return 0
