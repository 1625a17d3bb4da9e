from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import World
from tests.lab.waits import completed
from vlmpatch.catalog import environment
from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Problem
from vlmpatch.catalog.read import read
from vlmpatch.engine import engine
from vlmpatch.tools import cli, listing, run
from vlmpatch.tools.doctor import examination, views
from vlmpatch.tools.explain import answer_page, answers
from vlmpatch.tools.view import language

CHECKOUT = Path(__file__).resolve().parents[2]


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return completed(
        [sys.executable, "-m", "vlmpatch", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, **environ},
    )


def test_list_prints_every_patch_in_both_languages() -> None:
    english, chinese = command("list", "--lang", "en"), command("list", "--lang", "zh")
    assert (english.returncode, chinese.returncode) == (0, 0)
    for entry in read(default_path()).entries.values():
        assert entry.id in english.stdout
        assert "".join(entry.summary.split()) in "".join(english.stdout.split())
        assert "".join(entry.summary_zh.split()) in "".join(chinese.stdout.split())


def test_a_word_too_many_is_answered_with_what_the_command_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--lang", "en", "doctor", "train.sh"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "[--command LINE]" in said
    assert "vlmpatch doctor: error: unrecognized arguments: train.sh" in said


def test_list_says_once_what_is_wrong_with_the_catalog(tmp_path: Path) -> None:
    for name in ("vlmpatch", "patches", "failures"):
        shutil.copytree(CHECKOUT / name, tmp_path / name)
    broken = (CHECKOUT / "compat.toml").read_text().replace("severity =", "gravity =", 1)
    (tmp_path / "compat.toml").write_text(broken)
    for arguments in (["list", "--lang", "en"], ["list", "--json"]):
        done = completed(
            [sys.executable, "-m", "vlmpatch", *arguments],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        assert done.returncode == 1
        assert len(re.findall(r"compat\.toml.*gravity", done.stderr)) == 1, done.stderr


def test_list_says_what_the_import_has_kept_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    broken = read(default_path())._replace(problems=(Problem("compat.toml", "it is broken", "Correct it"),))
    assert listing.listing(broken, language.Words("en")) == 1
    assert "compat.toml: it is broken. Correct it" in capsys.readouterr().err


def test_doctor_without_torch_says_that_this_is_the_wrong_python() -> None:
    done = command("doctor")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "probably the wrong Python" in done.stdout
    assert "1 error(s)" in done.stdout


def test_the_list_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    entries = read(default_path()).entries
    assert [each["id"] for each in listed["patches"]] == list(entries)
    assert all(each["requires"] == entries[each["id"]].requires for each in listed["patches"])


def test_doctor_counts_garbage_in_the_environment() -> None:
    done = command("doctor", VLMPATCH_DISABLE="nosuch", VLMPATCH_LOG="loud", VLMPATCH_STRICT="maybe")
    assert done.returncode == 1
    for name in ("VLMPATCH_DISABLE", "VLMPATCH_LOG", "VLMPATCH_STRICT"):
        assert name in done.stdout


def test_doctor_says_what_would_happen(world: World) -> None:
    world.distribution("fakelib", "1.5")
    package = world.package("target")
    armed = world.patch(package, '{ fakelib = ">=1" }')
    absent = world.patch("nowhere", '{ fakelib = ">=1" }')
    other = world.patch(package, '{ fakelib = ">=2" }')
    changed = world.patch(world.package("changed", "x = 1\n"), '{ fakelib = ">=1" }')
    findings = examination.examine(world.catalog())
    states = {status.id: status.state.value for status in findings.patches}
    assert states == {armed: "armed", absent: "armed", other: "not needed", changed: "conflict"}
    process = engine.Engine(world.catalog(), environment.Settings()).status()
    assert {id_: process[id_].state.value for id_ in (armed, absent, other)}.items() <= states.items()
    said = views.page(findings, language.Words("en")).text()
    assert "1 patches will act, 1 wait for a module that is not here" in " ".join(said.split())
    assert not findings.sound
    assert package not in sys.modules
    assert "fakelib" in views.page(findings, language.Words("en")).text()


def test_explain_a_patch(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "vision-input-grads"]) == 0
    said = capsys.readouterr().out
    assert "use_reentrant=True" in said
    assert "VLMPATCH_DISABLE=vision-input-grads" in said


def test_explain_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "gradient_checkpointing: true\nRuntimeError: Expected to mark a variable ready only once. This …"
    )
    assert cli.main(["explain", str(log)]) == 0
    assert "gradient-checkpointing-default" in capsys.readouterr().out


def test_explain_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00 nothing known")))
    assert cli.main(["explain", "-"]) == 1
    assert "No failure" in capsys.readouterr().out


def test_explain_neither_id_nor_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "vision-input-grad"]) == 2
    assert "Did you mean 'vision-input-grads'" in capsys.readouterr().err


def test_explain_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(tmp_path)]) == 2
    assert "as a log" in capsys.readouterr().err
    ready = "RuntimeError: Expected to mark a variable ready only once; lora_B.weight"
    for rank, text in enumerate(("RuntimeError: Connection reset by peer", ready, "KeyError: 'a'", ready)):
        (tmp_path / f"{rank}").mkdir()
        log = tmp_path / f"{rank}" / "stderr.log"
        log.write_text(text + "\n")
        os.utime(log, (0, 100 - rank))
    assert cli.main(["explain", str(tmp_path)]) == 0
    assert f"(3{os.sep}stderr.log, line 1)" in capsys.readouterr().out.replace("\n", " ").replace("  ", "")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_log(data: bytes) -> None:
    ours = read(default_path())
    given = answers.answer(io.BytesIO(data), ours, language.Words("en"), None)
    assert answer_page.page(given, language.Words("zh")).text()


def test_run_reaches_every_python_below_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import subprocess, sys\n"
        "assert 'vlmpatch' in sys.modules, 'outer'\n"
        "below = 'import sys; assert \"vlmpatch\" in sys.modules'\n"
        "subprocess.run([sys.executable, '-c', below], check=True)\n"
        "print('active')\n"
    )
    before = sorted(os.listdir(run.INJECT))
    done = command("run", sys.executable, str(script))
    assert (done.returncode, done.stdout) == (0, "active\n"), done.stderr
    assert sorted(set(os.listdir(run.INJECT)) - {"__pycache__"}) == sorted(set(before) - {"__pycache__"})


def test_run_passes_arguments_exit_code_and_output_through() -> None:
    done = command("run", sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "--x", "-- y")
    assert (done.returncode, done.stdout) == (7, "['--x', '-- y']\n")


def test_run_keeps_the_users_own_sitecustomize_and_path(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.users_own = True\n")
    probe = "import sys, sitecustomize; print(sys.users_own, sitecustomize.__file__)"
    done = command("run", sys.executable, "-c", probe, PYTHONPATH=str(tmp_path))
    assert done.stdout == f"True {tmp_path / 'sitecustomize.py'}\n", done.stderr


def test_run_where_vlmpatch_cannot_work_leaves_the_process_alone(tmp_path: Path) -> None:
    package = Path(run.INJECT).parent
    shutil.copytree(package, tmp_path / "vlmpatch", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "vlmpatch" / "bootstrap.py").unlink()  # a half-removed installation
    done = completed(
        [sys.executable, "-c", "print('ran')"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "vlmpatch" / "inject")},
    )
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "vlmpatch.bootstrap" in done.stderr


def test_run_nested_is_active_once() -> None:
    probe = "import os; print(os.environ['PYTHONPATH'].count('inject'))"
    done = command("run", sys.executable, "-m", "vlmpatch", "run", sys.executable, "-c", probe)
    assert done.stdout == "1\n"


def test_run_of_no_such_command() -> None:
    done = command("run", "no-such-command-at-all")
    assert done.returncode == 127
    assert "no such command" in done.stderr


def test_run_of_nothing() -> None:
    done = command("run")
    assert done.returncode == 2
    assert "run" in done.stderr


def test_run_hints_at_python_for_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert run.run([str(script)]) == 127
    assert f"run python {script}" in capsys.readouterr().err
