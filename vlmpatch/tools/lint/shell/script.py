"""A shell script walked through for the commands it would start; nothing is executed.

Every branch of an ``if`` and a ``case`` is read, in order, a loop's body once, a function where it is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vlmpatch.support import files
from vlmpatch.tools.lint import unread
from vlmpatch.tools.lint.shell.variables import TooLarge, Variables
from vlmpatch.tools.lint.shell.words import REDIRECTIONS, Lexer, Part, Token, Unclosed
from vlmpatch.tools.lint.unread import Unread

LARGEST = 256 << 10  # bytes of a script
FILES, DEEPEST, LAUNCHES = 8, 8, 16
UP = 6  # folders between a script and the one it is started in
_COST = 200  # of one command, beside what it fills in
LAUNCHERS = frozenset({"torchrun", "deepspeed", "accelerate", "swift", "llamafactory-cli", "trl", "axolotl"})
# What these read of their environment.
_READ = {"swift": ("NPROC_PER_NODE",), "llamafactory-cli": ("NPROC_PER_NODE",)}
_SHELLS = frozenset({"bash", "sh", "zsh"})
_BEFORE = frozenset({  # start what is named behind them
    "srun", "sudo", "env", "nohup", "time", "timeout", "exec", "command", "numactl", "nsys", "ssh", "docker",
    "docker-compose", "podman", "singularity", "apptainer", "conda", "mamba", "micromamba", "uv", "poetry",
    "pipenv", "mpirun", "mpiexec", "stdbuf", "nice", "taskset", "pdsh", "tmux", "screen", "flock", "sbatch",
    "ray", "kubectl",
})  # fmt: skip
_NOT_BEFORE = frozenset(
    {"install", "create", "activate", "pip", "pip3", "build", "pull", "add", "apt", "apt-get", "which"}
)
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_SAYS = re.compile(r"(?:--ntasks|[A-Za-z_]\w*)=.*", re.DOTALL)  # of what stands before a launcher
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_OPENS, _CLOSES = (
    frozenset({"if", "while", "until", "{", "case", "for"}),
    frozenset({"fi", "done", "}", "esac"}),
)
_RESERVED = _OPENS | _CLOSES | {"then", "else", "elif", "do", "!", "time"}
_SCRIPT = (".sh", ".bash", ".slurm", ".sbatch")
_NODES = re.compile(r"^#SBATCH[ \t]+(?:--nodes|-N)[= \t](\d{1,4})\b", re.MULTILINE)
_PYTHON = re.compile(r"python[0-9.]*")


class Launch(NamedTuple):
    """A command that starts Python: its words, where it stands, and the folder that is looked in."""

    words: tuple[str, ...]
    where: str
    folder: str


class _Place(NamedTuple):
    """Where what is read stands: a name, whether lines are counted in it, how deep it was started."""

    name: str
    counted: bool
    depth: int

    def at(self, line: int) -> str:
        return f"{self.name}:{line}" if self.counted else self.name


class Script:
    """One reading of a command and of the scripts that it names.

    Attributes:
        launches: what it would start.
        problems: what could not be read.
    """

    def __init__(self, folder: str) -> None:
        self.launches: list[Launch] = []
        self.problems: list[Unread] = []
        self._folder = folder
        self._variables = Variables(folder)
        self._functions: dict[str, list[Token]] = {}
        self._exported: set[str] = set()
        self._files = 0

    def read(self, command: str, where: str) -> None:
        """Read ``command`` as a shell would."""
        try:
            self._text(command, _Place(where, False, 0))
        except TooLarge as error:
            self.problems.append(Unread(where, str(error)))

    def _text(self, text: str, place: _Place) -> None:
        self._variables.spend(len(text))
        if place.depth > DEEPEST:
            return
        tokens: list[Token] = []
        try:
            for token in Lexer(text).tokens():
                tokens.append(token)
        except Unclosed as error:
            self.problems.append(Unread(place.at(error.line), str(error)))
        self._run(tokens, place)

    def _run(self, tokens: list[Token], place: _Place) -> None:
        depth, at, held, guarded = 0, 0, list[Token](), False
        while at <= len(tokens):
            token = tokens[at] if at < len(tokens) else Token(0, "\n")
            if (body := _function(tokens, at)) is not None:
                name, start, at = body
                self._functions[name] = tokens[start:at]
                continue
            at += 1
            if token.parts:
                held.append(token)
                continue
            if token.operator in REDIRECTIONS:
                at += 1
                continue
            opened, words = _without_reserved(held)
            depth, held = max(0, depth + opened), []
            if words and words[0].bare == "exit" and depth == 0 and not guarded:
                return
            if words:
                self._command(words, place)
            if words or token.operator != "\n":
                guarded = token.operator in ("&&", "||", "(")

    def _command(self, tokens: list[Token], place: _Place) -> None:
        self._variables.spend(_COST)
        if tokens[0].bare in _DECLARES:
            if tokens[0].bare == "export":
                self._exported |= {token.parts[0].text.partition("=")[0] for token in tokens[1:]}
            tokens = [token for token in tokens[1:] if not token.bare.startswith("-")]
            for token in tokens:
                self._assign(token)
            return
        given = 0
        while given < len(tokens) and _assigned(tokens[given]):
            given += 1
        if given == len(tokens):
            for token in tokens:
                self._assign(token)
            return
        before = [self._variables.text(token) for token in tokens[:given]]
        words = [word for token in tokens[given:] for word in self._variables.words(token)]
        if words:
            self._start(words, before, place, place.at(tokens[0].line))

    def _assign(self, token: Token) -> None:
        match = _assigned(token)
        if match is None:
            return
        if token.elements is not None:
            values = [word for element in token.elements for word in self._variables.words(element)]
            self._variables.assign(match[1], values, match[2] == "+", array=True)
            return
        rest = token._replace(parts=(Part(match[3], ""), *token.parts[1:]))
        self._variables.assign(match[1], [self._variables.text(rest)], match[2] == "+", array=False)

    def _start(self, words: list[str], before: list[str], place: _Place, where: str) -> None:
        """A command whose words are known; ``before`` are the variables set for it alone."""
        while behind := _run_with_vlmpatch(words):
            words = behind
        name = os.path.basename(words[0])
        if name in self._functions:
            self._call(name, words[1:], place)
        elif name == "eval":
            self._text(" ".join(words[1:]), _Place(where, False, place.depth + 1))
        elif name in _SHELLS:
            self._shell(words, place, where)
        elif name in ("source", "."):
            if len(words) > 1 and words[1].endswith(_SCRIPT):
                self._follow(words[1], [], place, "")
        elif name.endswith(_SCRIPT):
            self._follow(words[0], words[1:], place, where)
        elif name in LAUNCHERS or _PYTHON.fullmatch(name):
            self._launch((*before, *self._environment(name), *words), where)
        elif name in _BEFORE or words[0].startswith("$"):
            self._behind(words, before, place, where)
        elif name == "cd" and len(words) > 1:
            self._enter(words[1])
        elif name in ("set", "shift"):
            self._shifted(words)
        elif name == "for" and len(words) > 3:
            self._variables.assign(words[1], words[3:4], more=False, array=False)

    def _environment(self, launcher: str) -> Iterator[str]:
        for name in self._exported.intersection(_READ.get(launcher, ())):
            yield from (f"{name}={value}" for value in self._variables.values.get(name, [])[:1])

    def _enter(self, folder: str) -> None:
        path = found(self._folder, folder)
        if path is not None and os.path.isdir(path):
            self._folder = os.path.normpath(path)

    def _shifted(self, words: list[str]) -> None:
        if words[0] == "shift":
            count = int(words[1]) if words[1:] and re.fullmatch(r"\d{1,3}", words[1]) else 1
            del self._variables.arguments[:count]
        elif words[1:2] == ["--"]:
            self._variables.arguments = words[2:]

    def _behind(self, words: list[str], before: list[str], place: _Place, where: str) -> None:
        """What a command of another kind (srun, ssh, docker …) starts."""
        for number, word in enumerate(words[1:], 1):
            name = os.path.basename(word)
            if word in _NOT_BEFORE:
                return
            starts = name in LAUNCHERS or name in _SHELLS or _PYTHON.fullmatch(name)
            if name.endswith(_SCRIPT) or (starts and number + 1 < len(words)):
                set_ = [each for each in words[1:number] if _SAYS.fullmatch(each)]
                self._start(words[number:], [*before, *set_], place, where)
                return
            if any(each.isspace() for each in word) and not word.startswith("-"):
                self._text(word, _Place(where, False, place.depth + 1))
        if words[0].startswith("$") and any(word.endswith(".py") for word in words):
            self._launch((*before, *words), where)

    def _launch(self, words: tuple[str, ...], where: str) -> None:
        if len(self.launches) < LAUNCHES:
            self.launches.append(Launch(words, where, self._folder))

    def _shell(self, words: list[str], place: _Place, where: str) -> None:
        for number, word in enumerate(words[1:], 1):
            if re.fullmatch(r"-[a-z]*c", word):
                rest = words[number + 1 :]
                self._text(" ".join(rest[:1]), _Place(where, False, place.depth + 1))
                return
            if not word.startswith(("-", "+")):
                self._follow(word, words[number + 1 :], place, where)
                return

    def _call(self, name: str, arguments: list[str], place: _Place) -> None:
        if place.depth < DEEPEST:
            held, self._variables.arguments = self._variables.arguments, arguments
            self._run(self._functions[name], place._replace(depth=place.depth + 1))
            self._variables.arguments = held

    def _follow(self, name: str, arguments: list[str], place: _Place, where: str) -> None:
        """Read another script; where ``where`` says nothing it may be missing."""
        path = found(self._folder, name)
        if path is None:
            if where and "$" not in name:
                self.problems.append(Unread(where, unread.MISSING, name))
            return
        self._files += 1
        if self._files > FILES or place.depth >= DEEPEST:
            return
        try:
            text = files.read(path, LARGEST).replace("\r\n", "\n")  # as an editor on Windows leaves it
        except OSError as error:
            self.problems.append(Unread(path, str(error.strerror)))
            return
        kept = self._folder, self._variables.folder, self._variables.arguments
        self._folder = self._variables.folder = os.path.dirname(path) or "."
        self._variables.arguments = arguments
        if nodes := _NODES.search(text):
            for name_ in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
                self._variables.assign(name_, [nodes[1]], more=False, array=False)
        self._text(text, _Place(os.path.basename(path), True, place.depth + 1))
        self._folder, self._variables.folder, self._variables.arguments = kept


def found(folder: str, *names: str) -> str | None:
    """Where the nearest of the files lies that a launch names: beside it, here, or above it."""
    above = [folder, "."]
    for _ in range(UP):
        above.append(os.path.join(above[-1] if len(above) > 2 else folder, os.pardir))
    paths = (os.path.join(at, os.path.expanduser(name)) for at in above for name in names)
    return next((path for path in paths if "\0" not in path and os.path.exists(path)), None)


def _assigned(token: Token) -> re.Match[str] | None:
    first = token.parts[0]
    return None if first.quote else _ASSIGNS.fullmatch(first.text)


def _run_with_vlmpatch(words: list[str]) -> list[str]:
    """What ``python -m vlmpatch run`` is given to run; nothing where it is another command."""
    for at in range(4):
        if words[at : at + 2] == ["vlmpatch", "run"]:
            return words[at + 2 :]
    return []


def _function(tokens: Sequence[Token], at: int) -> tuple[str, int, int] | None:
    """The name of the function defined at ``at``, where its body begins, and where it ends."""
    names = [token.bare or token.operator for token in tokens[at : at + 4]]
    if names[:1] == ["function"] and len(names) > 1:
        name, at = names[1], at + 2 + 2 * (names[2:4] == ["(", ")"])
    elif names[1:3] == ["(", ")"] and names[0].isidentifier():
        name, at = names[0], at + 3
    else:
        return None
    while at < len(tokens) and tokens[at].operator == "\n":
        at += 1
    start, open_ = at, 0
    for end in range(start, len(tokens)):
        open_ += (tokens[end].bare == "{") - (tokens[end].bare == "}")
        if open_ <= 0:
            return name, start + 1, end + 1
    return name, start + 1, len(tokens)


def _without_reserved(tokens: list[Token]) -> tuple[int, list[Token]]:
    """How many blocks open at the beginning of a command, and the command itself."""
    at = opened = 0
    while at < len(tokens) and tokens[at].bare in _RESERVED:
        opened += (tokens[at].bare in _OPENS) - (tokens[at].bare in _CLOSES)
        if tokens[at].bare in ("for", "case"):
            break
        at += 1
    return opened, tokens[at:]
