"""The command line: ``python -m vlmpatch explain | doctor | verify | run | lock | new | list | retire``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from vlmpatch import __version__
from vlmpatch.tools.schemas import NAMES
from vlmpatch.tools.view import usage
from vlmpatch.tools.view.language import LANGUAGES, Words, language
from vlmpatch.tools.view.page import Page


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 fine, 1 something was found, 2 the command line is wrong, 3 the disk is full.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    say = Words(_language(given) or language(os.environ))
    parser = _parser(say)
    if not given:
        _first(say).show(sys.stdout)
        return 0
    asked = parser.parse_args(given)
    if asked.verb == "run":
        command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
        if not command:
            parser.error(say("run what? python -m vlmpatch run torchrun …"))
        from vlmpatch.tools.run import run

        return run(command, say)
    if asked.verb == "new":
        from vlmpatch.tools.new import new

        return new(asked, say)
    return _report(asked, say)


def _report(asked: argparse.Namespace, say: Words) -> int:
    from vlmpatch.catalog import sets

    catalog = sets.known(os.environ)
    if asked.verb == "explain":
        if any("/" in name for name in asked.what):  # a patch of a set that is not switched on, perhaps
            named = {name.partition("/")[0] for name in asked.what}
            catalog = sets.add(catalog, sorted(named & sets.installed().keys()), "explain")
        from vlmpatch.tools.explain.explain import explain

        return explain(asked.what, catalog, say, asked.json)
    if asked.verb == "doctor":
        from vlmpatch.tools.doctor.doctor import doctor
        from vlmpatch.tools.doctor.examination import Asked

        looked = Asked(asked.model or "", asked.ds_config or "", asked.command or "")
        view = "annotations" if asked.form else asked.view
        return doctor(catalog, looked, say, view, asked.strict, asked.form)
    if asked.verb == "verify":
        from vlmpatch.tools.verify.verify import verify

        return verify(catalog, say, asked.only, asked.device, asked.json)
    if asked.verb == "lock":
        from vlmpatch.tools import lock

        if asked.diff is None:
            return lock.lock(catalog, say, asked.file)
        view = "annotations" if asked.form else asked.view
        return lock.diff(catalog, say, asked.file, asked.diff, view, asked.form)
    if asked.verb == "schema":
        from vlmpatch.tools import schemas

        print(schemas.text(asked.name), end="")
        return 0
    if asked.verb == "retire":
        from vlmpatch.tools import retire

        if asked.json:
            print(json.dumps(retire.data(catalog), indent=2))
        else:
            retire.page(catalog, say).show(sys.stdout)
        return 0
    from vlmpatch.tools.listing import listing

    return listing(catalog, say, asked.json)


def _language(given: Sequence[str]) -> str:
    """The language that ``--lang`` asks for: it is wanted before the help is made."""
    head = given[: given.index("run")] if "run" in given else given
    for number, word in enumerate(head):
        value = word.removeprefix("--lang=") if word != "--lang" else "".join(head[number + 1 : number + 2])
        if word.startswith("--lang") and value in LANGUAGES:
            return value
    return ""


def _parser(say: Words) -> argparse.ArgumentParser:
    spoken = argparse.ArgumentParser(add_help=False)
    spoken.add_argument("--lang", choices=LANGUAGES, help=say("the language; default: the locale's"))
    style = usage.style(say)
    parser = usage.parsers(say)(
        prog="python -m vlmpatch", description=_first(say).text(), formatter_class=style, parents=[spoken]
    )
    parser.add_argument("--version", action="version", version=f"vlmpatch {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar=say("command"))

    def verb(name: str, words: str, examples: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = verbs.add_parser(
            name,
            help=say(words),
            description=say(words),
            epilog=examples,
            formatter_class=style,
            parents=[spoken],
        )
        usage.translate(made, say)
        return made

    usage.translate(parser, say)
    explain = verb("explain", "explain a log, a failure or a patch", _EXPLAIN)
    what = say(
        "log files, folders, a pattern, - for standard input, a pasted message, a failure (F3) or a patch id"
    )
    explain.add_argument("what", nargs="*", help=what)
    explain.add_argument("--json", action="store_true", help=say("print JSON"))
    _doctor(
        verb("doctor", "check this environment or a launch: what goes wrong, what would be patched", _DOCTOR),
        say,
    )
    verify = verb(
        "verify",
        "try the patches on this machine: tiny two-rank trainings, without and with vlmpatch",
        _VERIFY,
    )
    verify.add_argument(
        "--only", action="append", default=[], metavar="ID", help=say("only the runs of this patch")
    )
    where = say("default: the GPUs if there are two, else the CPU")
    verify.add_argument("--device", choices=("cpu", "cuda"), default="", help=where)
    verify.add_argument("--json", action="store_true", help=say("print JSON"))
    run = verb("run", "run a command with vlmpatch active in every Python process below it", _RUN)
    run.add_argument("command", nargs=argparse.REMAINDER, help=say("the command as you would type it"))
    _lock(verb("lock", "record which patches apply here, or say what an upgrade changes", _LOCK), say)
    made = verb("new", "create a patch in a package of your own, with its tests", _NEW)
    made.add_argument("id", help=say("the patch's id, in kebab-case; named by what it fixes"))
    project = say("the project that is patched, as it is imported")
    made.add_argument("--upstream", required=True, metavar="NAME", help=project)
    made.add_argument("--set", metavar="NAME", help=say("the patch set's name; default: the folder's"))
    ended = say("the failure it fixes, as `explain` names it; default: a new one")
    made.add_argument("--failure", default="new", metavar="F4", help=ended)
    listing = verb("list", "list every patch", "  python -m vlmpatch list")
    listing.add_argument("--json", action="store_true", help=say("print JSON"))
    retire = verb("retire", "say which upgrade makes which patch unnecessary", "  python -m vlmpatch retire")
    retire.add_argument("--json", action="store_true", help=say("print JSON"))
    schema = verb(
        "schema", "print the JSON Schema of a command's --json", "  python -m vlmpatch schema doctor"
    )
    schema.add_argument("name", choices=NAMES, help=say("the command"))
    return parser


def _doctor(made: argparse.ArgumentParser, say: Words) -> None:
    made.add_argument(
        "--model", metavar="DIR", help=say("a model's folder or config.json; its code is not run")
    )
    made.add_argument("--ds-config", metavar="FILE", help=say("a DeepSpeed or accelerate configuration"))
    made.add_argument("--command", metavar="LINE", help=say("a launch line or a shell script; it is not run"))
    made.add_argument("--strict", action="store_true", help=say("exit with 1 on warnings too"))
    views = made.add_mutually_exclusive_group()
    for name, words in (
        ("all", "also list the patches that have nothing to do here"),
        ("json", "print JSON"),
        ("markdown", "Markdown for an issue; paths are shortened"),
        ("digest", "one line that is equal on nodes that would train alike"),
    ):
        views.add_argument(f"--{name}", dest="view", action="store_const", const=name, help=say(words))
    _annotations(views, say("the findings in the form of a CI service; default: the one this runs in"))
    made.set_defaults(view="text")


def _annotations(views: argparse._MutuallyExclusiveGroup, words: str) -> None:
    from vlmpatch.tools.view.ci import FORMS, service

    forms, here = tuple(FORMS), service(os.environ)
    views.add_argument("--annotations", dest="form", nargs="?", choices=forms, const=here, help=words)


def _lock(made: argparse.ArgumentParser, say: Words) -> None:
    from vlmpatch.lockfile.lock import FILE

    made.add_argument("--file", default=FILE, help=say("the lock file; default: {name}", name=FILE))
    other = say("compare it with this environment, or with another lock; exit with 1 if they differ")
    made.add_argument("--diff", nargs="?", const="", default=None, metavar="OTHER", help=other)
    views = made.add_mutually_exclusive_group()
    for name, words in (("json", "print JSON"), ("markdown", "for a commit message or a pull request")):
        views.add_argument(f"--{name}", dest="view", action="store_const", const=name, help=say(words))
    words = say("annotations on the lock's lines in the form of a CI service; default: the one this runs in")
    _annotations(views, words)
    made.set_defaults(view="text")


_EXPLAIN = """  python -m vlmpatch explain train.log
  python -m vlmpatch explain logs/ or rank*.log or train.log.gz
  kubectl logs trainer-0 | python -m vlmpatch explain
  python -m vlmpatch explain "AssertionError: The parameter 323 has already been reduced"
  python -m vlmpatch explain F11"""
_DOCTOR = """  python -m vlmpatch doctor
  python -m vlmpatch doctor --command 'swift sft --model … --deepspeed zero3'
  python -m vlmpatch doctor --command finetune_lora.sh --model ./MiniCPM-V-2_6
  python -m vlmpatch doctor --markdown
  python -m vlmpatch doctor --command train.sh --annotations github"""
_VERIFY = """  python -m vlmpatch verify
  python -m vlmpatch verify --only zero3-recompute-release"""
_NEW = """  python -m vlmpatch new rope-cache --upstream acme_model --set acme-vl
  python -m vlmpatch new other-fix --upstream acme_model --failure F4"""
_LOCK = """  python -m vlmpatch lock
  python -m vlmpatch lock --diff
  python -m vlmpatch lock --diff new.lock --markdown
  python -m vlmpatch lock --diff --annotations"""
_RUN = "  python -m vlmpatch run torchrun --nproc_per_node 8 finetune.py …"


def _first(say: Words) -> Page:
    """What to do first."""
    made = Page()
    made.add(say("vlmpatch lets vision-language models train with gradient checkpointing."), "head")
    made.add()
    for words, command in (
        ("A run has failed:", "python -m vlmpatch explain train.log"),
        ("Before a run:", "python -m vlmpatch doctor --command 'swift sft …'"),
        ("To see that it works here:", "python -m vlmpatch verify"),
        ("To train with it:", "python -m vlmpatch run torchrun …"),
        ("or, in a script:", "import vlmpatch  # " + say("first line of the script")),
        ("After an upgrade:", "python -m vlmpatch retire"),
    ):
        made.code(command, say(words))
    made.add()
    made.add(say("More: python -m vlmpatch COMMAND --help"), "dim")
    return made


def entry_point() -> int:
    """``main`` for the shell: a reader (head, less) that has seen enough is no error."""
    from vlmpatch.tools.view.page import forgiving

    forgiving()
    try:
        return main()
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
