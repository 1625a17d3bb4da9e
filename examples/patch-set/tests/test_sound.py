"""The set is whole: every file in its form, nothing left to fill in, no patch that vlmpatch has."""

from vlmpatch.tools.new import lacks


def test_nothing_is_missing() -> None:
    missing = lacks("acme-vl")
    assert not missing, "\n".join(missing)
