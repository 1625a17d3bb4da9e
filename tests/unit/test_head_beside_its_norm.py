"""Which norm accelerate is told that a head comes after; real runs prove the rest (``cases/``)."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch.api import Patch
from vlmpatch.journal.journal import Journal


class RMSNorm:
    pass


NORM, OWN = RMSNorm(), RMSNorm()
DECODER = SimpleNamespace(children=lambda: iter([object(), RMSNorm(), NORM, object()]))
WEIGHT = object()


class Model:
    """As transformers' are, its norm within its language model."""

    head, embeddings, decoder = SimpleNamespace(weight=WEIGHT), SimpleNamespace(weight=object()), DECODER

    def get_output_embeddings(self) -> Any:
        return self.head

    def get_input_embeddings(self) -> Any:
        return self.embeddings

    def get_decoder(self) -> Any:
        return self.decoder


class Tied(Model):
    embeddings = SimpleNamespace(weight=WEIGHT)


class Headless(Model):
    head = None  # type: ignore[assignment]


class Normless(Model):
    decoder = SimpleNamespace(children=lambda: iter([object()]))


class OfNoModule(Model):
    decoder = (DECODER,)  # type: ignore[assignment]


class Abstract(Model):
    def get_decoder(self) -> Any:
        raise NotImplementedError


class Asking(Model):
    def get_decoder(self, modality: str) -> Any:  # type: ignore[override]
        return self.decoder


@pytest.fixture
def fsdp_utils() -> ModuleType:
    module = ModuleType("accelerate.utils.fsdp_utils")
    module._find_final_norm = lambda model: getattr(model, "own", None)  # type: ignore[attr-defined]
    importlib.import_module("vlmpatch.patches.accelerate.fsdp2_head_beside_its_norm").apply(
        Patch("p", Journal()), module
    )
    return module


def test_the_decoders_last_norm_is_found(fsdp_utils: ModuleType) -> None:
    assert fsdp_utils._find_final_norm(Model()) is NORM
    assert fsdp_utils._find_final_norm(model=Model()) is NORM


def test_what_accelerate_finds_is_kept(fsdp_utils: ModuleType) -> None:
    model = Model()
    model.own = OWN  # type: ignore[attr-defined]
    assert fsdp_utils._find_final_norm(model) is OWN


@pytest.mark.parametrize("kind", [Tied, Headless, Normless, OfNoModule, Abstract, Asking, object])
def test_others_are_sharded_as_before(fsdp_utils: ModuleType, kind: type) -> None:
    assert fsdp_utils._find_final_norm(kind()) is None
