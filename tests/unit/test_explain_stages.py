"""Where a program was when it ended, of an error that nothing here knows and of a traceback that is cut."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generate.failures import CATALOG
from tests.unit.test_explain_grounds import ROOT, TRAIN, frame
from vlmpatch.tools.explain import answer_page, answers, stages
from vlmpatch.tools.view.language import Words

BEGUN = "Traceback (most recent call last):\n" + TRAIN
UNKNOWN = "QuuxError: a thing that nobody has seen"
BACKWARD = frame(f"{ROOT}/torch/autograd/graph.py", "_engine_run_backward")
FORWARD = frame(f"{ROOT}/transformers/models/x/modeling_x.py", "forward")
ENDS = [
    (f"{ROOT}/torch/utils/data/_utils/fetch.py", "fetch", "data"),
    (f"{ROOT}/swift/llm/template/base.py", "data_collator", "data"),
    (f"{ROOT}/torch/distributed/rendezvous.py", "_create_c10d_store", "connect"),
    (f"{ROOT}/transformers/trainer.py", "_save_checkpoint", "save"),
    (f"{ROOT}/transformers/trainer.py", "_load_optimizer_and_scheduler", "resume"),
    (f"{ROOT}/deepspeed/runtime/engine.py", "load_checkpoint", "resume"),
    (f"{ROOT}/vllm/v1/engine/core.py", "step", "generate"),
    (f"{ROOT}/transformers/hf_argparser.py", "parse_args_into_dataclasses", "arguments"),
    (f"{ROOT}/peft/mapping.py", "get_peft_model", "adapter"),
    (f"{ROOT}/transformers/modeling_utils.py", "_load_pretrained_model", "model"),
    (f"{ROOT}/torch/nn/modules/module.py", "load_state_dict", "model"),
    ("<frozen importlib._bootstrap>.py", "_gcd_import", "import"),
    (f"{ROOT}/deepspeed/runtime/engine.py", "__init__", "engine"),
    (f"{ROOT}/torch/nn/parallel/distributed.py", "__init__", "engine"),
    (f"{ROOT}/torch/optim/adamw.py", "step", "step"),
    (f"{ROOT}/accelerate/optimizer.py", "step", "step"),
    (f"{ROOT}/deepspeed/runtime/engine.py", "backward", "backward"),
    (f"{ROOT}/transformers/models/x/modeling_x.py", "forward", "forward"),
    (f"{ROOT}/torch/nn/modules/linear.py", "forward", "forward"),
]


def said(text: str, language: str = "en") -> tuple[str, dict[str, Any]]:
    """The page of ``text``, on one line, and the same as data."""
    say = Words(language)
    found = answers.answer(io.BytesIO(text.encode()), CATALOG, say, None)
    return " ".join(answer_page.page(found, say).text().split()), answer_page.data(found, say)


@pytest.mark.parametrize(("path", "function", "id_"), ENDS)
def test_a_traceback_ends_in_a_stage(path: str, function: str, id_: str) -> None:
    found = stages.of(BEGUN + frame(path, function))
    assert found is not None
    assert found.id == id_


def test_a_forward_that_the_backward_called_is_a_recomputation() -> None:
    again = stages.of(f"{BEGUN}{BACKWARD}\n{FORWARD}")
    before = stages.of(f"{BEGUN}{FORWARD}\n{BACKWARD}")
    assert (again and again.id, before and before.id) == ("recomputation", "backward")


def test_a_trainer_alone_is_no_stage() -> None:
    assert stages.of(BEGUN) is None
    assert stages.of("no frame at all") is None


@given(st.sampled_from(ENDS), st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), max_size=5))
def test_what_a_stage_calls_is_of_that_stage(end: tuple[str, str, str], names: list[str]) -> None:
    path, function, id_ = end
    deeper = "\n".join(frame(f"/w/own/{name}_q.py", f"{name}_q") for name in names)
    found = stages.of(f"{BEGUN}{frame(path, function)}\n{deeper}")
    assert found is not None
    assert found.id == id_


@given(st.text(max_size=400))
def test_any_text_is_read(text: str) -> None:
    found = stages.of(f'File "{text}.py", line 3, in forward\n{text}')
    assert found is None or found in stages.read()


def test_the_page_says_it_with_what_to_look_at_next() -> None:
    text = f"{BEGUN}{BACKWARD}\n{FORWARD}\n{UNKNOWN}"
    for language in ("en", "zh"):
        known = stages.of(text)
        assert known is not None
        page, data = said(text, language)
        plain = page.replace(" ", "")
        for pair in (known.words, known.look):
            assert Words(language).pick(pair).replace(" ", "") in plain
        assert data["stage"] == "recomputation"


def test_a_traceback_that_is_cut_has_its_stage_too() -> None:
    page, data = said(BEGUN + FORWARD)
    assert "in the forward" in page
    assert (data["cut"], data["stage"]) == (True, "forward")


def test_what_the_last_line_calls_counts_where_a_traceback_is_cut() -> None:
    text = BEGUN.rpartition("    return")[0] + "    self.accelerator.backward(loss, **kwar"
    assert said(text)[1]["stage"] == "backward"
    assert stages.of(text) is None


def test_a_cause_that_is_known_needs_no_stage() -> None:
    page, data = said(
        f"{BEGUN}{FORWARD}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    )
    assert data["instead"] == "out-of-memory"
    assert data["stage"] is None
    assert "in the forward" not in page


def test_what_the_kind_says_stands_beside_the_stage_alone() -> None:
    page, data = said(f"{BEGUN}{FORWARD}\nKeyError: 'nonesuch'")
    assert (data["ground"], data["stage"]) == ("absent-key", "forward")
    assert "in the forward" in page
    assert "first batch" not in page


def test_every_stage_is_told_in_both_languages_and_known_by_signs_in_lower_case() -> None:
    listed = stages.read()
    ids = [stage.id for stage in listed]
    assert len(set(ids)) == len(ids)
    for stage in listed:
        assert bool(stage.signs) != bool(stage.again)
        assert set(stage.again) <= set(ids)
        assert all(sign == sign.lower() for sign in stage.signs)
        for english, chinese in (stage.words, stage.look):
            assert english.isascii()
            assert not chinese.isascii()
