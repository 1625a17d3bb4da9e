"""checkpointing-default: wrong without it, right with it, and as before when it is taken back."""

import importlib

import vlmpatch

ID = "acme-vl/checkpointing-default"
TARGET = "acme_vl.modeling"


def right() -> bool:
    """Whether nothing said means the non-reentrant variant, and what is said stands."""
    model = importlib.import_module(TARGET).AcmeModel()
    assert model.enable_checkpointing(use_reentrant=True) == "reentrant"
    return bool(model.enable_checkpointing() == "non-reentrant")


def test_it_decides() -> None:
    vlmpatch.use("acme-vl")
    assert right()
    status = vlmpatch.status()[ID]
    assert status.state is vlmpatch.State.APPLIED, status.reason
    with vlmpatch.disabled(ID):
        assert not right()
    assert right()
    assert vlmpatch.undo(ID) == []
    assert not right()
