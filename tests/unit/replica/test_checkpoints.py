"""The hashes that a replica remembers for comparison (replica/checkpoints.py)."""

from __future__ import annotations

from jetcluster.replica.checkpoints import CHECKPOINT_EVERY, CHECKPOINTS, Checkpoints


def test_checkpoints_are_bounded_and_tell_the_newest_two() -> None:
    points = Checkpoints(3, b"three")
    assert points.at(3) == b"three" and points.to_tell() == [(3, b"three")]
    for index in range(4, (CHECKPOINTS + 10) * CHECKPOINT_EVERY):
        points.note(index, b"%d" % index)
    assert len(points._hashes) == CHECKPOINTS
    newest = (CHECKPOINTS + 10) * CHECKPOINT_EVERY - 1
    checkpoint = newest - newest % CHECKPOINT_EVERY
    assert points.to_tell() == [(newest, b"%d" % newest), (checkpoint, b"%d" % checkpoint)]
    assert points.at(checkpoint) == b"%d" % checkpoint
    assert points.at(checkpoint + 1) is None and points.at(CHECKPOINT_EVERY) is None
    assert Checkpoints().to_tell() == []
