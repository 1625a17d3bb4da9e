"""last-image-kept: wrong without it, right with it, and as before when it is taken back."""

import importlib

import vlmpatch

ID = "acme-vl/last-image-kept"
TARGET = "acme_vl.processing"


def right() -> bool:
    """Whether each of five images is in a group of two or less."""
    groups = importlib.import_module(TARGET).groups(["a", "b", "c", "d", "e"], size=2)
    return [len(group) for group in groups] == [2, 2, 1]


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
