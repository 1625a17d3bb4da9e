"""Labels that ms-swift has spread over ranks are counted whole, and no others."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

patch: Any = importlib.import_module("vlmpatch.patches.swift.swift_spread_rows_counted")

SOURCE = """
class Seq2SeqTrainer:
    def _prepare_inputs(self, inputs):
        sequence_parallel.prepare_inputs(inputs)

    def compute_loss(self, model, inputs):
        loss /= self.template.sequence_parallel_size
"""


class Labels(list[int]):
    """A tensor, as far as this goes."""


def made(monkeypatch: pytest.MonkeyPatch, ranks: int = 2, everywhere: bool = False) -> Any:
    monkeypatch.setattr(patch, "whole", lambda labels, groups: groups)

    class Trainer:
        """transformers'."""

        counts: Any = "a part"

        def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
            return self.counts

    class Seq2SeqTrainer(Trainer):
        template = SimpleNamespace(sequence_parallel_size=ranks)
        args = SimpleNamespace(average_tokens_across_devices=everywhere)

        def _prepare_inputs(self, inputs: Any) -> Any:
            return {**inputs, "labels": Labels(inputs["labels"])} if "labels" in inputs else inputs

    module = ModuleType("swift.trainers.seq2seq_trainer")
    groups = SimpleNamespace(sp_group="the row's", rp_group=None)
    vars(module).update(Seq2SeqTrainer=Seq2SeqTrainer, sequence_parallel=groups)
    patch.apply(api.Patch("swift-spread-rows-counted", Journal()), module)
    return Seq2SeqTrainer()


@pytest.mark.parametrize(("everywhere", "groups"), [(False, ("the row's", None)), (True, (None,))])
def test_spread_labels_are_counted_on_the_ranks_that_have_them(
    everywhere: bool, groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made(monkeypatch, everywhere=everywhere)
    batch = trainer._prepare_inputs({"labels": [1, 2]})
    assert trainer._get_num_items_in_batch([batch], "cpu") == groups


def test_labels_of_whole_rows_are_counted_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(monkeypatch)
    batch = trainer._prepare_inputs({"labels": [1, 2]})
    for batches in ([{"labels": Labels([1, 2])}], [batch, batch], [trainer._prepare_inputs({})], []):
        assert trainer._get_num_items_in_batch(batches, device="cpu") == "a part"
    alone = made(monkeypatch, ranks=1)
    assert alone._get_num_items_in_batch([alone._prepare_inputs({"labels": [1]})], "cpu") == "a part"


def test_where_nothing_is_counted_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(monkeypatch)
    trainer.counts = None
    batch = trainer._prepare_inputs({"labels": [1, 2]})
    assert trainer._get_num_items_in_batch([batch], "cpu") is None


def test_the_form_of_the_release_is_looked_for() -> None:
    def look(text: str) -> str | None:
        found: str | None = patch.look(api.Code("swift.trainers.seq2seq_trainer", "trainer.py", text))
        return found

    assert look(SOURCE) is None
    assert "spreads no rows" in str(look(SOURCE.replace("sequence_parallel.prepare_inputs", "other")))
    assert "in another way" in str(look(SOURCE.replace("loss /= ", "loss *= ")))
    with pytest.raises(api.Unrecognised):
        look("class Other:\n    pass\n")
