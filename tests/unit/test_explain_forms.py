"""A log in another form is the same log: packed, recoded, escaped, broken, cut, piped, pasted."""

from __future__ import annotations

import bz2
import functools
import gzip
import html
import io
import json
import lzma
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_explain import OURS, READY, TRACE
from tests.unit.test_logs import LOGS
from vlmpatch.tools import cli
from vlmpatch.tools.explain import answer_page, answers, explain, inputs, lines
from vlmpatch.tools.view.language import Words

FAILED = TRACE + READY + "\n"
ENGLISH = Words("en")


def told(raw: bytes) -> answers.Answer:
    return answers.answer(io.BytesIO(raw), OURS, ENGLISH, None)


def said(raw: bytes) -> str | None:
    hit = told(raw).ours
    return hit.failure.id if hit else None


def zipped(text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("job/empty.log", "")
        archive.writestr("job/rank0.log", text)
    return made.getvalue()


def page_of_the_web(text: str) -> bytes:
    return f"<html><body><p>{html.escape(text)}</p></body></html>".replace("\n", "<br>").encode()


def a_table(text: str) -> bytes:
    """As pages that show a file have it."""
    rows = (f"<td>{at}</td><td>{html.escape(line)}</td>" for at, line in enumerate(text.split("\n"), 1))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>".encode()


def behind(words: str) -> Callable[[str], bytes]:
    return lambda text: "\n".join(words + line for line in text.split("\n")).encode()


def broken(text: str, width: int) -> bytes:
    rows = (line[at : at + width] for line in text.split("\n") for at in range(0, max(1, len(line)), width))
    return "\n".join(rows).encode()


@functools.cache
def plain(log: Path) -> str | None:
    return said(log.read_bytes())


TYPOGRAPHIC = str.maketrans({"'": "\u2019", '"': "\u201d", "`": "\u2018"})
REPORT = """# Training fails with several GPUs

### System Info

- `transformers` version: 4.57.1
- Platform: Linux-5.15.0-105-generic-x86_64-with-glibc2.35
- PyTorch version (accelerator?): 2.8.0+cu126 (CUDA)
- DeepSpeed version: 0.17.6
- PEFT version: 0.17.1
- Using distributed or parallel set-up in script?: <fill in>

### Who can help?

@a @b

### Information

- [ ] The official example scripts
- [x] My own modified scripts

### Reproduction

```bash
{}
```

### Expected behavior

It should train.
"""
CHINESE_REPORT = """[BUG] <title> 微调报错

### 是否已有关于该错误的issue或讨论？ | Is there an existing issue / discussion for this?

- [X] 我已经搜索过已有的issues和讨论 | I have searched the existing issues / discussions

### 当前行为 | Current Behavior

```
{}
```

### 运行环境 | Environment

```Markdown
- OS: Ubuntu 22.04
- Python: 3.10
- Transformers: 4.57.1
- PyTorch: 2.8.0
- CUDA (`python -c 'import torch; print(torch.version.cuda)'`): 12.6
```

### 备注 | Anything else?

_No response_
"""
WHOLE: dict[str, Callable[[str], bytes]] = {
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16-le without a mark": lambda text: text.encode("utf-16-le"),
    "utf-16-be without a mark": lambda text: text.encode("utf-16-be"),
    "utf-8 with a mark": lambda text: text.encode("utf-8-sig"),
    "gzip": lambda text: gzip.compress(text.encode()),
    "bz2": lambda text: bz2.compress(text.encode()),
    "xz": lambda text: lzma.compress(text.encode()),
    "zip": zipped,
    "gzip of utf-16": lambda text: gzip.compress(text.encode("utf-16")),
    "html": page_of_the_web,
    "<br/>": lambda text: text.replace("\n", "<br/>\n").encode(),
    "json": lambda text: json.dumps({"level": "error", "exception": text}).encode(),
    "json in json": lambda text: json.dumps({"log": json.dumps({"message": text})}).encode(),
    "a list of lines": lambda text: json.dumps([text.split("\n")]).encode(),
    "a list of lines, spread": lambda text: json.dumps(text.split("\n"), indent=2).encode(),
    "quoted": lambda text: "\n".join(f"> {line}" for line in text.split("\n")).encode(),
    "a report": lambda text: REPORT.format(text).encode(),
    "a report in Chinese": lambda text: CHINESE_REPORT.format(text).encode(),
    "typographic quotes": lambda text: text.translate(TYPOGRAPHIC).encode(),
    "broken at 80": lambda text: broken(text, 80),
    "broken at 120": lambda text: broken(text, 120),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "one line, as a shell joins them": lambda text: text.replace("\n", " ").encode(),
    "a table with numbers": a_table,
    "behind a logger's words": behind("2026-05-01 12:00:07,113 - train.main - ERROR - "),
    "behind Transformers' words": behind("[ERROR|trainer.py:412] 2026-05-01 12:00:07,113 >> "),
    "behind loguru's words": behind("2026-05-01 12:00:07.113 | ERROR    | __main__:main:42 - "),
    "behind a name in brackets": behind("[INFO:swift] "),
    "a list of Markdown": behind("- "),
    "numbered": lambda text: "\n".join(
        f"{at:4d} {row}" for at, row in enumerate(text.split("\n"), 1)
    ).encode(),
    "Markdown that escapes": lambda text: re.sub(r"([_*\[\]<>#])", r"\\\1", text).encode(),
}


@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_form_that_loses_nothing_has_the_same_answer(log: Path, form: str) -> None:
    assert said(WHOLE[form](log.read_text())) == plain(log)


# What of each log is left decides, but for those named.
CUT: dict[str, tuple[Callable[[str], str], set[str]]] = {
    "the last five lines": (
        lambda text: "\n".join(text.rstrip().split("\n")[-5:]),
        {"F11", "F16", "F19", "F20", "F23", "F35", "F4", "F6"},
    ),
    "the last 26 lines": (
        lambda text: "\n".join(text.rstrip().split("\n")[-26:]),
        {"F11", "F16", "F19", "F20", "F23", "F35", "F4", "F6"},
    ),
    "cut at 80": (
        lambda text: "\n".join(line[:80] for line in text.split("\n")),
        {"D", "F11", "F16", "F19", "F20", "F24", "F30", "F35", "F6"},
    ),
}
# Of these what is left shows another failure of ours, more weakly.
WEAKER = {*((form, "F6", "F5") for form in CUT), ("cut at 80", "F35", "F26")}


@pytest.mark.parametrize("form", CUT)
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_what_is_left_of_a_log_decides_or_nothing_is_claimed(log: Path, form: str) -> None:
    cut, undecided = CUT[form]
    whole, left = plain(log), said(cut(log.read_text()).encode())
    assert left == whole or (whole in undecided and (left is None or (form, whole, left) in WEAKER))


def test_a_log_that_begins_in_the_middle_may_be_what_its_beginning_would_tell() -> None:
    (log,) = (each for each in LOGS if each.stem == "F35.experts-alone-zero3")
    tail = "\n".join(log.read_text().rstrip().split("\n")[-26:])
    given_ = told(tail.encode())
    assert [each.id for each in given_.diagnosis.perhaps] == ["F26", "F103", "F35"]
    assert "begins in the middle of it" in " ".join(answer_page.page(given_, ENGLISH).text().split())
    above = "step 1\n" + tail.replace("[rank0]: ", "").replace("[rank1]: ", "")
    assert said(above.encode()) == "F26"


def torch_file() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02")
    return made.getvalue()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "It is empty"),
        (b"\n \n", "It is empty"),
        (gzip.compress(b"", mtime=0), "It is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "It is a picture"),
        (b"%PDF-1.7\n", "It is a PDF"),
        (b"\x28\xb5\x2f\xfd" + bytes(64), "zstd -dc"),
        (bytes(range(1, 256)) * 8, "It is binary data"),
        (torch_file(), "a checkpoint of a model"),
        (b"PK\x03\x04" + b"x" * 200, "an archive that cannot be opened"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_text_is_called_by_its_name(raw: bytes, words: str) -> None:
    given_ = told(raw)
    assert given_.ours is None
    assert words in " ".join(answer_page.page(given_, ENGLISH).text().split())


def test_what_was_cut_off_while_packed_is_read_as_far_as_it_goes() -> None:
    import random

    noise = random.Random(1).randbytes(9_000).hex()
    whole = gzip.compress((FAILED + noise).encode())
    assert said(whole[: len(whole) // 2]) == "F3"


def test_a_bomb_is_read_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "UNPACKED", 1 << 20)
    assert said(gzip.compress(bytes(16 << 20) + FAILED.encode())) is None
    assert said(lzma.compress(b"\n" * (16 << 20) + FAILED.encode())) is None
    assert said(gzip.compress(b"\n" * (1 << 19) + FAILED.encode())) == "F3"


@given(st.sampled_from(list(WHOLE)), st.integers(0, 4000), st.binary(max_size=20))
def test_a_damaged_form_has_an_answer(form: str, at: int, noise: bytes) -> None:
    raw = WHOLE[form](FAILED)
    assert answer_page.page(told(raw[:at] + noise + raw[at + len(noise) :]), ENGLISH).text()


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(["explain", "--lang", "en", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_several_logs_a_pattern_a_folder_and_rotated_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "rank0.log", tmp_path / "rank1.log.1"
    first.write_text("all is well\n")
    second.write_text(FAILED)
    for words in ([str(first), str(second)], [str(tmp_path / "rank*")], [str(tmp_path)]):
        code, out, _ = run(words, capsys)
        assert (code, out[:2]) == (0, "F3")
        assert "rank1.log.1, line 5" in " ".join(out.split())
    code, _, err = run([str(first), str(tmp_path / "gone.log")], capsys)
    assert code == 2
    assert "is no patch and no failure, and as a log: No such file" in err


def test_a_link_that_leads_nowhere_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "latest.log").symlink_to("gone.log")  # as trackers leave them in a folder that was copied
    (tmp_path / "loop.log").symlink_to("loop.log")
    for name, why in (
        ("latest.log", "No such file"),
        ("loop.log", "Too many levels of symbolic links"),
        ("ru*", "No such file"),
        (".", "no file in it ends in"),
    ):
        code, out, err = run([str(tmp_path / name)], capsys)
        assert (code, out) == (2, "")
        assert f"as a log: {why}" in err
    (tmp_path / "rank0.log").write_text(FAILED)
    code, out, _ = run([str(tmp_path)], capsys)
    assert (code, out[:2]) == (0, "F3")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_read_and_one_that_nothing_writes_to_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(FAILED,))
    writer.start()
    code, out, _ = run([str(pipe)], capsys)
    writer.join()
    assert (code, out[:2]) == (0, "F3")
    monkeypatch.setattr(inputs, "PATIENCE", 0.05)
    code, out, err = run([str(pipe)], capsys)
    assert (code, out) == (2, "")
    assert "as a log: it is a pipe that nothing writes to" in err
    pipe.write_text("")  # lets go of who still waits


def test_a_failure_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "F03.toml").write_text("id = 3")
    log = tmp_path / "train.log"
    log.write_text(FAILED)
    broken = OURS._replace(path=str(tmp_path / "compat.toml"))
    assert explain.explain([str(log)], broken, ENGLISH) == 1
    assert "F03.toml: " in capsys.readouterr().err


F9 = next(log for log in LOGS if log.name == "F9.zero3-modules-to-save.log")
MEMORY = (
    'Traceback (most recent call last):\n  File "t.py", line 1, in f\n'
    "torch.OutOfMemoryError: CUDA out of memory.\n"
)


def test_logs_of_different_failures_have_an_answer_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"a": FAILED, "b": F9.read_text(), "c": MEMORY, "d": FAILED}
    for at, (name, text) in enumerate(texts.items()):
        (tmp_path / f"{name}.log").write_text(text)
        os.utime(tmp_path / f"{name}.log", (at, at))
    everything = sorted(map(str, tmp_path.iterdir()))
    for words in (everything, [str(tmp_path / "*.log")], [str(tmp_path)]):
        code, out, _ = run(words, capsys)
        assert code == 0
        assert [line[:2] for line in out.splitlines() if line.startswith(("F3 · ", "F9 · "))] == ["F3", "F9"]
        assert "GPU's memory" in out
        assert json.loads(run([*words, "--json"], capsys)[1])[0]["file"].endswith("a.log")
    assert [each["failure"] for each in json.loads(run([*everything, "--json"], capsys)[1])] == [
        "F3",
        "F9",
        None,
    ]


def test_a_sentence_in_an_escaped_log_stays_whole() -> None:
    sentence = "we caught a ValueError: no picture"
    log = json.dumps({"message": FAILED + "x" * lines.LINE + "\n" + sentence}).encode()
    assert sentence in [raw.decode().rstrip('"}') for _, raw in lines.lines([log], 1)]


def test_a_pasted_message_and_ids_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([READY], capsys)[:2][1].startswith("F3 · ")
    assert run(READY.split(), capsys)[1].startswith("F3 · ")
    assert run(["f3"], capsys)[1].startswith("F3 · ")
    both = run(["F3", "f05"], capsys)[1]
    assert "F3 · " in both
    assert "F5 · " in both
    assert run(["zero3训练时纯文本和图像混合就卡住"], capsys)[1].startswith("F11 · ")
    assert run(["nonsense"], capsys)[0] == 2
    assert run(["训练.log"], capsys)[0] == 2
    assert run(["my training run.log"], capsys)[0] == 2


@pytest.mark.parametrize("name", ["d", "f3", "data", "torch-checkpoint-default"])
def test_a_folder_of_logs_comes_before_a_failure_of_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    bare = run([name], capsys)
    assert bare[0] == 0
    assert "rank0.log" not in bare[1]
    (Path(name) / "rank0.log").write_text(FAILED)
    code, out, _ = run([name], capsys)
    assert (code, out[:2]) == (0, "F3")
    assert "rank0.log, line 5" in " ".join(out.split())


def test_an_id_in_capitals_is_the_failure_whatever_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("F5").mkdir()
    (Path("F5") / "rank0.log").write_text(FAILED)
    assert run(["F5"], capsys)[1].startswith("F5 · ")


@pytest.mark.parametrize("words", [[], ["-"]])
def test_what_is_piped_in(words: list[str]) -> None:
    command = [sys.executable, "-m", "vlmpatch", "explain", "--lang", "en", *words]
    for raw in (FAILED.encode(), gzip.compress(FAILED.encode())):
        done = subprocess.run(command, input=raw, capture_output=True, check=True)
        assert done.stdout.decode().startswith("F3 · ")


def test_a_log_that_the_shell_opens(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(FAILED)
    with (tmp_path / "train.log").open("rb") as log:
        command = [sys.executable, "-m", "vlmpatch", "explain", "--lang", "en"]
        done = subprocess.run(command, stdin=log, capture_output=True, check=True)
    assert done.stdout.decode().startswith("F3 · ")


WATCHED = (
    "vlmpatch watch: rank 1: step 1: gradients differ between ranks: the loss is computed past DDP's wrapper "
    "(a script that calls self.model), or gradients are reduced in a nested backward (use_reentrant=True); "
    "`python -m vlmpatch explain F6` and `explain F10`\n"
)


def test_what_watch_printed_leads_to_the_failure_it_names() -> None:
    given_ = told(b"{'loss': 1.0}\n" * 9 + WATCHED.encode())
    assert given_.ours is not None
    assert (given_.ours.failure.id, given_.diagnosis.active) == ("F6", True)
    text = " ".join(answer_page.page(given_, ENGLISH).text().split())
    assert "gradients differ between ranks" in text
    assert "import vlmpatch" not in text
    line = b"{'loss': 1.0}\n"
    assert said(line * 60_000 + WATCHED.encode() + line * 60_000) == "F6"


def test_what_watch_found_without_a_failure_of_a_number_is_shown_whole() -> None:
    found = (
        "vlmpatch watch: gradients of zeros only: model.visual.patch_embed.proj.weight and 12 more. Likely "
        "cause: what they feed adds nothing to the loss: no image in these batches, labels all masked, or a "
        "part of the model that this task does not use\n"
    )
    text = answer_page.page(told(b"{'loss': 1.0}\n" + found.encode()), ENGLISH).text()
    assert "the watch found what may train wrongly" in text
    assert found.split()[-9:] == text.replace("(line 2)", "").split()[-9:]
    assert "No error shows in it at all" not in text
    assert said("vlmpatch watch: … F6".encode()) == "F6"


def test_who_had_the_import_is_not_told_to_add_it() -> None:
    own = "vlmpatch [explicit-reentrant-warning]: use_reentrant=True was passed and stands.\n"
    line = "step done\n"
    for log in (own + FAILED, own + line * 90_000 + FAILED):
        text = answer_page.page(told(log.encode()), ENGLISH).text()
        assert "F3 · " in text
        assert "import vlmpatch" not in text
    assert "It said: vlmpatch [explicit-reentrant-warning]" in answer_page.page(
        told((own + FAILED).encode()), ENGLISH
    ).text().replace("\n          ", " ")


def test_what_vlmpatch_said_is_shown_where_nothing_failed() -> None:
    text = answer_page.page(told(b"vlmpatch watch: 9 steps, 4 trainable parameters, all reached\n"), ENGLISH)
    assert "It said: vlmpatch watch: 9 steps" in text.text()


def test_packages_of_another_place_are_not_those_installed_here() -> None:
    def verdicts(text: str) -> set[str]:
        return {each.verdict for each in told(text.encode()).patches if each.id == "torch-checkpoint-default"}

    assert verdicts(TRACE + READY) == {"perhaps"}
    assert verdicts("- PyTorch version: 2.9.1\n" + TRACE + READY) == {"applies"}
