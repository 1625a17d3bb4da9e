"""Parsers of command lines in the language of a view: what argparse says of a wrong one is English."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from vlmpatch.tools.view.language import Words

OF_ARGPARSE = (  # the errors that a command line of ours can end in; `reasons.zh.toml` has their Chinese
    "unrecognized arguments: {}",
    "the following arguments are required: {}",
    "argument {}: invalid choice: {} (choose from {})",
    "argument {}: expected one argument",
    "argument {}: expected at least one argument",
    "argument {}: expected at most one argument",
    "argument {}: not allowed with argument {}",
    "argument {}: ignored explicit argument {}",
    "ambiguous option: {} could match {}",
)


def parsers(say: Words) -> type[argparse.ArgumentParser]:
    """The class of a parser, and of those of its commands, that speak as ``say`` does."""

    class Parser(argparse.ArgumentParser):
        def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
            found, rest = super().parse_known_args(args, namespace)
            if rest:  # said by the command's own parser: its usage shows what it takes
                self.error(f"unrecognized arguments: {' '.join(rest)}")
            return found, rest

        def error(self, message: str) -> NoReturn:
            self.print_usage(sys.stderr)
            self.exit(2, f"{self.prog}: {say('error')}: {say.told(message)}\n")

    return Parser


def style(say: Words) -> type[argparse.HelpFormatter]:
    """The form of a parser's help."""

    class Style(argparse.RawDescriptionHelpFormatter):
        def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
            super().add_usage(usage, actions, groups, say("usage: ") if prefix is None else prefix)

    return Style


def translate(made: argparse.ArgumentParser, say: Words) -> None:
    """The headings and the two options that argparse brings."""
    made._positionals.title, made._optionals.title = say("positional arguments"), say("options")
    for action in made._actions:
        if isinstance(action, argparse._HelpAction):
            action.help = say("show this and exit")
        elif isinstance(action, argparse._VersionAction):
            action.help = say("show the version and exit")
