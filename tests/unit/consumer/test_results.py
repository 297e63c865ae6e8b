"""The bytes of a turn's result in the rolling hash."""

from __future__ import annotations

from jetcluster.consumer.results import TurnResult


def test_bytes_tell_what_was_accepted_and_every_state_on_the_way() -> None:
    """Nodes of two versions compare them: they stay as they are."""
    void, empty, one, two = (TurnResult(accepted=accepted) for accepted in (False, True, True, True))
    one.marks += [1]
    two.marks += [1, 2]
    one.outcomes += [None]
    assert void.digest_bytes() == b"t\x00"
    assert empty.digest_bytes() == b"t\x01"
    assert one.digest_bytes() == b"t\x01" + bytes([1]) + bytes(7)
    assert two.digest_bytes() == one.digest_bytes() + bytes([2]) + bytes(7)
