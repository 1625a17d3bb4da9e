"""A launch script is read as the shell reads it, and never run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch.tools.lint import unread
from vlmpatch.tools.lint.shell import arithmetic, script, variables
from vlmpatch.tools.lint.shell.script import Script
from vlmpatch.tools.lint.shell.words import Lexer, Token, Unclosed
from vlmpatch.tools.lint.unread import Unread


def started(text: str, folder: str = ".") -> list[tuple[str, ...]]:
    made = Script(folder)
    made.read(text, "the command")
    return [launch.words for launch in made.launches]


def folders(text: str, folder: Path) -> list[str]:
    made = Script(str(folder))
    made.read(text, "the command")
    return [os.path.relpath(launch.folder, folder) for launch in made.launches]


def words(text: str) -> tuple[str, ...]:
    """The words that a launch gets for ``text``."""
    ((_, *found),) = started(text)
    return tuple(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torchrun a.py --run_name exp#3 --x 1  # torchrun b.py", "a.py --run_name exp#3 --x 1"),
        ("V=a/b\ntorchrun t.py --v ${V#*/} --w ${V%/*} --z ${V//\\//_}", "t.py --v b --w a --z a_b"),
        ('A="\n  --x 1 \\\n  --y "two" \\\n"\ntorchrun t.py $A', "t.py --x 1 --y two"),
        ("A=(--x 1)\nA+=(--y 2)\ntorchrun t.py \"${A[@]}\" ${#A[@]}", "t.py --x 1 --y 2 4"),
        ("torchrun t.py --n ${N:-8} --m ${M-\"a b\"} ${K:+--k}", "t.py --n 8 --m a b"),
        ("X=1; unset_is=$NOWHERE; torchrun t.py $unset_is $X", "t.py $NOWHERE 1"),
        ("go() { torchrun t.py \"$@\" --last $1; }\ngo --x 1", "t.py --x 1 --last --x"),
        ("function go {\n torchrun t.py $1\n}\ngo one", "t.py one"),
        ("cmd=\"torchrun t.py --x 'a b'\"; eval \"$cmd\"", "t.py --x a b"),
        ("L='torchrun t.py'; C='--x 1'; srun -n 8 bash -c \"$L $C\"", "t.py --x 1"),
        ("ssh node1 \"cd /tmp && torchrun t.py --x 1\" > log 2>&1 &", "t.py --x 1"),
        ("nohup torchrun t.py --x 1 2>&1 | tee -a log", "t.py --x 1"),
        ("cat > a.sh <<'EOF'\ntorchrun no.py\nEOF\ntorchrun t.py", "t.py"),
        ("if [ $A = 1 ]; then torchrun t.py; fi", "t.py"),
        ("for lr in 1e-4 1e-5; do torchrun t.py --lr $lr; done", "t.py --lr 1e-4"),
        ("case $1 in\n lora) torchrun t.py ;;\n *) exit 1 ;;\nesac", "t.py"),
        ("[ -z $A ] && exit 1\nif x; then exit 2; fi\ntorchrun t.py\nexit 0\ntorchrun no.py", "t.py"),
        ("set -- --x 1\nshift\ntorchrun t.py $@", "t.py 1"),
        ("torchrun t.py --n $((16 / (2 * 4))) --m $((X + 1))", "t.py --n 2 --m $((X + 1))"),
        ("export N=3 M; declare -a B=(1); torchrun t.py $N ${B[0]}", "t.py 3 1"),
        ("python -u -m vlmpatch run torchrun t.py", "t.py"),
        ("vlmpatch run torchrun t.py", "t.py"),
        ("kubectl exec pod -- torchrun t.py", "t.py"),
        ("torchrun t.py --m <A-MODEL> --d <a/b> < in > out", "t.py --m <A-MODEL> --d <a/b>"),
        ("torchrun t.py \\# '$X' \"\\$Y\" $'z'", "t.py # $X $Y z"),
    ],
)  # fmt: skip
def test_a_launch_gets_the_words_that_the_shell_would_give_it(text: str, expected: str) -> None:
    assert " ".join(words(text)) == expected


def test_quotes_keep_a_word_whole() -> None:
    assert words("X='a b'; torchrun t.py \"$X\" $X a$X") == ("t.py", "a b", "a", "b", "aa", "b")


@pytest.mark.parametrize(
    "text",
    [
        "echo torchrun t.py",
        "which torchrun; pip install deepspeed; conda activate swift",
        "sudo apt-get install python3 -y",
        "conda install python torchrun",
        "# torchrun t.py",
        "cat <<EOF\ntorchrun t.py\nEOF",
        "",
    ],
)
def test_what_starts_nothing(text: str) -> None:
    assert started(text) == []


def test_other_scripts_are_read_with_their_arguments(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "env.sh").write_text("BATCH=4\n")
    (tmp_path / "inner" / "go.sh").write_text("torchrun t.py --lr $1 --batch ${BATCH}\nbash missing.sh\n")
    (tmp_path / "outer.sh").write_text("source env.sh\nbash inner/go.sh 1e-5\nsource gone.sh\n")
    made = Script(str(tmp_path))
    made.read("bash outer.sh", "the command")
    ((found, where, _),) = made.launches
    assert (found, where) == (("torchrun", "t.py", "--lr", "1e-5", "--batch", "4"), "go.sh:1")
    assert made.problems == [Unread("go.sh:2", unread.MISSING, "missing.sh")]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("export NPROC_PER_NODE=8\nswift sft", "NPROC_PER_NODE=8"),
        ('N=4\nexport A=1 NPROC_PER_NODE="$N"\nllamafactory-cli train', "NPROC_PER_NODE=4"),
        ("NPROC_PER_NODE=4\nexport NPROC_PER_NODE\nswift sft", "NPROC_PER_NODE=4"),
        ("export NPROC_PER_NODE=8\nNPROC_PER_NODE=2 swift sft", "NPROC_PER_NODE=2"),
        ("NPROC_PER_NODE=8\nswift sft", "swift"),
        ("export NPROC_PER_NODE\nswift sft", "swift"),
        ("export NPROC_PER_NODE=8 model=x\npython train.py", "python"),
    ],
)
def test_what_a_launcher_reads_of_its_environment(text: str, first: str) -> None:
    made = Script(".")
    made.read(text, "the command")
    assert made.launches[0].words[0] == first


def test_a_script_with_the_line_ends_of_windows(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_bytes(b"export NPROC_PER_NODE=8\r\nswift sft \\\r\n  --deepspeed zero3\r\n")
    reading = Script(str(tmp_path))
    reading.read("bash go.sh", "the command")
    (launch,) = reading.launches
    assert launch.words[-4:] == ("swift", "sft", "--deepspeed", "zero3")


def test_a_script_knows_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    text = 'D="$( cd "$( dirname "${BASH_SOURCE[0]}" )/.." && pwd )"\ntorchrun t.py --deepspeed $D/z.json\n'
    (tmp_path / "s" / "a.sh").write_text(text)
    assert started(f"bash {tmp_path}/s/a.sh") == [("torchrun", "t.py", "--deepspeed", f"{tmp_path}/z.json")]


def test_scripts_that_name_each_other_come_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("torchrun t.py\nbash b.sh\nbash b.sh\n")
    (tmp_path / "b.sh").write_text("bash a.sh\nbash a.sh\n")
    assert len(started("bash a.sh", str(tmp_path))) <= script.FILES


def test_an_open_quote_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("torchrun t.py --x 1\ntorchrun u.py 'open\n\n")
    made = Script(str(tmp_path))
    made.read("bash a.sh", "the command")
    assert made.problems == [Unread("a.sh:2", unread.QUOTE)]
    assert len(made.launches) == 2


def test_only_a_regular_file_of_some_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "zero.sh").symlink_to("/dev/zero")
    (tmp_path / "huge.sh").write_text("#" * (script.LARGEST + 1))
    for name in ("pipe.sh", "zero.sh", "huge.sh"):
        made = Script(str(tmp_path))
        made.read(f"bash {name}", "the command")
        assert len(made.problems) == 1


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60,
        "f() { " + "f; " * 100 + "}\nf",
        "eval " * 3 + "'" + "eval $X;" * 50 + "'",
        'X="eval \\"\\$X;\\$X\\""; eval "$X"',
        "vlmpatch run " * 20_000,
        "nohup bash -c " * 5000 + "x",
        "X=" + "${X:-" * 500 + "}" * 500,
        "$(" * 50_000,
        "((((" * 50_000,
        "A=" + "a" * 390 + "\n" + "B=${A##*a*a*b}\n" * 2000,
        "<<A " * 5000 + "\n" + "x\n" * 5000,
        "X=$((" + "-" * 390 + "1))",
        "X=$(dirname" + " dirname" * 20_000 + ")",
    ],
)  # fmt: skip
def test_no_script_takes_for_ever(text: str) -> None:
    made = Script(".")
    made.read(text, "the command")
    assert made._variables._left > -variables.BUDGET


SHELL = st.lists(
    st.sampled_from(
        [*"abX1 \t\n#'\"$(){}[]`\\|&;<>=+-*/%:@!,", "torchrun ", "bash -c ", "eval ", "${", "$((", "<<E\n",
         "E\n", "X=", "X=(", "\nfor X in ", "if ", "fi\n", "f() {", "case ", "esac", "source ", "\x1c",
         "\x00"]
    ),
    max_size=60,
)  # fmt: skip


@given(SHELL)
def test_anything_can_be_read(parts: list[str]) -> None:
    started("".join(parts))


@given(st.text(max_size=60))
def test_nothing_of_a_text_is_lost_or_read_twice(text: str) -> None:
    lexer, tokens = Lexer(text), list[Token]()
    with suppress(Unclosed):
        tokens.extend(lexer.tokens())
    assert lexer.at == len(text)
    assert all(token.operator or token.parts for token in tokens)
    assert [token.line for token in tokens] == sorted(token.line for token in tokens)


@given(st.text("0123456789+-*/() aX$#", max_size=40))
def test_any_sum_has_a_result_or_none(text: str) -> None:
    made = arithmetic.result(text, lambda name: name)
    assert made is None or isinstance(made, int)


def test_a_script_goes_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    own = 'ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"\ncd $ROOT/src/deep\ntorchrun a.py\n'
    (tmp_path / "run" / "own.sh").write_text(own)
    (tmp_path / "run" / "typed.sh").write_text("cd src\ntorchrun a.py\ncd nowhere\ntorchrun b.py\n")
    assert folders("bash run/own.sh", tmp_path) == ["src/deep"]
    assert folders("bash run/typed.sh", tmp_path) == ["src", "src"]


def test_the_nodes_that_slurm_is_asked_for_are_known(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\n#SBATCH --nodes=16\ntorchrun --nnodes=$SLURM_NNODES a.py\n")
    made = Script(str(tmp_path))
    made.read("sbatch a.sh", "the command")
    assert made.launches[0].words == ("torchrun", "--nnodes=16", "a.py")
