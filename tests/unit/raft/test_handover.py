"""A leader that hands over answers first what it accepted, but does not wait for a disk that may be why it goes."""

from __future__ import annotations

import pytest

from jetcluster.raft.api import LeavingError, Role
from jetcluster.raft.config import RaftConfig
from tests.unit.raft.loopback import Loopback

PATIENCE = RaftConfig().transfer_patience


def handing_over(net: Loopback) -> int:
    """A hands over to B, and its disk is at work on what it accepted. The index of that."""
    leader = net.start()
    net.run(0.1)
    net["A"].writer.hold()
    index = leader.propose(b"accepted")
    assert leader.transfer("B")
    net.run(PATIENCE / 2)
    assert net["B"].group().log.last_index == index
    return index


def test_what_was_accepted_is_applied_before_the_target_campaigns() -> None:
    """The answers of one batch were lost with the leadership, in one of four hand-overs on a busy machine."""
    net = Loopback()
    handing_over(net)
    assert net["A"].group().role is Role.LEADER
    with pytest.raises(LeavingError):
        net["A"].group().propose(b"more")
    net["A"].writer.release()
    net.until(lambda: net["B"].group().ready, seconds=0.1)
    assert net["A"].machine().dropped == []
    assert net["A"].machine().commands() == net["B"].machine().commands() == [b"accepted"]


def test_a_disk_that_does_not_return_delays_nothing_for_long() -> None:
    net = Loopback()
    index = handing_over(net)
    net.until(lambda: net["B"].group().ready, seconds=PATIENCE / 2 + 0.1)
    assert net["A"].machine().dropped == [index]
    assert net["B"].machine().commands() == [b"accepted"]
