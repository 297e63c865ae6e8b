from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.mesh.frames import FrameError
from jetcluster.model.limits import AccountLimits
from jetcluster.replica.account_quota import (
    FAR_BYTES,
    GRANT_BYTES,
    MAX_SIZE,
    NOTICE,
    SMALL_BYTES,
    TELL_SECONDS,
    WARN_SECONDS,
    AccountQuota,
    Holding,
    QuotaShare,
)
from jetcluster.stream.lead.answers import RefusedError
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime


class FakeMesh:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.receive: Any = None

    def on_notice(self, name: str, callback: Any) -> None:
        assert name == NOTICE
        self.receive = callback

    def on_peers(self, up: Any, down: Any) -> None:
        self.up = lambda peer: up(SimpleNamespace(peer_id=peer))
        self.down = lambda peer: down(SimpleNamespace(peer_id=peer))

    def notify(self, peer: str | None, name: str, payload: bytes) -> None:
        self.sent.append(payload)


def holding_of(replica: Any) -> Holding:
    return Holding(replica.assignment, replica.store.byte_count + replica.ingest.pending_bytes, replica.leading)


class Node:
    """A room with the limits of account A and of the node."""

    def __init__(
        self, *, storage: int = -1, memory: int = -1, node: int = -1, tiers: dict[str, AccountLimits] | None = None
    ) -> None:
        limits = self.limits = {"A": AccountLimits(max_storage=storage, max_memory=memory, tiers=tiers)}
        self.asked: list[bool] = []
        self.time, self.mesh, self.log = ManualTime(), FakeMesh(), ListLog()
        self.members = {"n1": 1, "n2": 1}
        self.replicas: dict[int, Any] = {}
        self.node, self.was, self.by_disk, self.looked = node, node, False, list[int]()
        mesh: Any = self.mesh
        self.room = AccountQuota(
            mesh,
            self.time,
            self.log,
            lambda: self.members,
            self.holdings,
            lambda account: limits.get(account, AccountLimits()),
            self.bytes_of,
            self.look,
            lambda: self.by_disk,
        )

    def bytes_of(self, memory: bool) -> int:
        self.asked.append(memory)
        return self.node

    def look(self, stored: int) -> bool:
        self.looked.append(stored)
        was, self.was = self.was, self.node
        return self.node != was

    def holdings(self) -> list[Holding]:
        return [holding_of(replica) for replica in self.replicas.values()]

    def take(self, replica: Any, size: int) -> QuotaShare:
        return self.room.take(replica.assignment, size, lambda: holding_of(replica))

    def stream(
        self, size: int = 0, *, account: str = "A", copies: int = 1, memory: bool = False, led: bool = True
    ) -> Any:
        replica = SimpleNamespace(
            assignment=SimpleNamespace(
                gid=len(self.replicas), account=account, memory=memory, replicas=copies, name="S"
            ),
            store=SimpleNamespace(byte_count=size),
            ingest=SimpleNamespace(pending_bytes=0),
            leading=led,
        )
        self.replicas[len(self.replicas)] = replica
        return replica

    def taken(self, replica: Any, size: int, most: int = 1000) -> int:
        """Number of messages of `size` bytes that get in, each stored at once."""
        for count in range(most):
            try:
                self.take(replica, size)
            except RefusedError as error:
                self.error = error.error
                return count
            replica.store.byte_count += size
        return most


def test_the_account_has_one_limit_for_all_its_streams() -> None:
    node = Node(storage=1000)
    one, two = node.stream(), node.stream()
    assert node.taken(one, 90) == 11
    assert (node.error.code, node.error.err_code) == (400, 10002)
    assert node.taken(two, 90) == 0
    assert node.taken(two, 10) == 1  # to the last byte
    assert node.taken(node.stream(account="B"), 500, 9) == 9
    assert node.taken(node.stream(memory=True), 500, 9) == 9
    assert len(node.log.events("warning")) == 1


def test_what_is_gone_makes_room_at_once() -> None:
    node = Node(memory=1000)
    stream = node.stream(memory=True)
    assert node.taken(stream, 100) == 10
    stream.store.byte_count = 0
    assert node.taken(stream, 100) == 10


def test_what_is_on_its_way_through_the_log_counts() -> None:
    node = Node(storage=1000)
    stream = node.stream()
    for _ in range(10):
        node.take(stream, 100)
        stream.ingest.pending_bytes += 100
    with pytest.raises(RefusedError):
        node.take(stream, 1)


def test_every_replica_counts_and_the_limit_is_that_of_all_together() -> None:
    node = Node(storage=1000)
    wide, single = node.stream(copies=3), node.stream()
    assert node.taken(wide, 100) == 3
    assert node.taken(single, 1, 200) == 100
    node = Node(storage=1000)
    single, wide = node.stream(300), node.stream(copies=3)
    node.room.tick()
    assert node.taken(wide, 100) == 2  # 300 + 3 * 200


def test_what_other_nodes_lead_counts_until_they_say_otherwise() -> None:
    node = Node(storage=1000)
    stream = node.stream(led=True)
    node.mesh.receive("n2", json.dumps([["A", False, 0, 950], ["A", True, 0, 7], ["B", False, 0, 9]]).encode())
    assert node.taken(stream, 10) == 5
    node.mesh.receive("n2", b"[]")
    assert node.taken(stream, 10) == 95
    node.mesh.receive("n2", json.dumps([["A", False, 0, 950]]).encode())
    node.members.pop("n2")  # removed from the cluster
    node.room.tick()
    stream.store.byte_count = 0
    assert node.taken(stream, 10) == 100
    for bad in (b"{", b"[[1]]", b"5", b'[["A", false, 0, "x"]]', b'[["A", false, 0, 1e999]]', b"[" * 100_000, b"{}[0]"):
        with pytest.raises(FrameError):
            node.mesh.receive("n1", bad)


def test_streams_of_a_node_that_is_gone_do_not_count_twice_once_others_lead_them() -> None:
    node = Node(storage=1000)
    node.mesh.receive("n2", b'[["A",false,0,900,60]]')  # 60 of them in streams that only n2 has
    one = node.stream(280, copies=3, led=False)
    assert node.taken(node.stream(), 10) == 10
    node.mesh.down("n2")
    node.mesh.down("n3")  # which never told anything
    one.leading = True
    node.room.tick()
    assert node.taken(node.stream(), 1) == 0  # 60 elsewhere, 840 and 100 here
    one.store.byte_count = 0
    assert node.taken(node.stream(), 10) == 84


def test_a_node_of_an_older_version_does_not_say_what_it_has_alone() -> None:
    node = Node(storage=1000)
    node.mesh.receive("n2", b'[["A",false,0,900]]')
    node.mesh.down("n2")
    assert node.taken(node.stream(), 10) == 10


def test_a_node_that_comes_is_told_soon() -> None:
    node = Node(storage=1000)
    node.stream(5, copies=3)
    node.room.tick()
    node.mesh.up("n2")
    node.room.tick()
    assert len(node.mesh.sent) == 1
    node.time.advance(TELL_SECONDS)
    node.room.tick()
    node.room.tick()
    assert len(node.mesh.sent) == 2


def test_other_nodes_are_sent_what_is_led_here() -> None:
    node = Node(storage=1000)
    stream = node.stream(5, copies=3)
    alone = node.stream(4)
    node.stream(7, led=False)
    node.stream(9, account="B")
    node.room.tick()
    node.room.tick()
    assert [json.loads(raw) for raw in node.mesh.sent] == [[["A", False, 0, 19, 4]]]
    stream.store.byte_count = 6
    node.room.tick()
    assert len(node.mesh.sent) == 1  # not that often
    node.time.advance(TELL_SECONDS)
    node.room.tick()
    assert json.loads(node.mesh.sent[-1]) == [["A", False, 0, 22, 4]]
    alone.leading = False
    node.time.advance(TELL_SECONDS + WARN_SECONDS)
    node.room.tick()
    assert json.loads(node.mesh.sent[-1]) == [["A", False, 0, 18, 0]]
    assert len(node.mesh.sent) == 3
    node.time.advance(TELL_SECONDS + WARN_SECONDS)
    node.room.tick()  # again without a change: a node may have come since
    assert len(node.mesh.sent) == 4


def test_the_node_has_a_limit_for_what_it_holds() -> None:
    node = Node(node=1000)
    node.stream(500, account="B", led=False)
    node.room.tick()
    assert node.taken(node.stream(), 100) == 5
    assert (node.error.code, node.error.err_code) == (503, 10023)


def test_far_from_every_limit_a_replica_gets_some_ahead() -> None:
    node = Node(storage=3 * (FAR_BYTES + 10 * GRANT_BYTES))
    one = node.stream(copies=3)
    share = node.take(one, 100)
    assert share.left == GRANT_BYTES
    assert node.room.led["A", False, 0] == 3 * (GRANT_BYTES + 100) and node.room.held[False] == GRANT_BYTES + 100
    share.left -= 1000
    one.ingest.pending_bytes = 1100
    assert node.take(one, GRANT_BYTES) is share and share.left == GRANT_BYTES
    one.ingest.pending_bytes += GRANT_BYTES
    node.room.tick([holding_of(one)])
    assert share.left == 0, "void"
    assert node.room.held[False] == one.ingest.pending_bytes
    share = node.take(one, 1)
    node.room.limits_changed()
    assert share.left == 0
    share = node.take(one, 1)
    node.room.forget(one.assignment.gid)
    assert share.left == 0


@pytest.mark.parametrize("limits", [{"storage": 1 << 40, "node": FAR_BYTES}, {"storage": FAR_BYTES, "node": 1 << 40}])
def test_near_a_limit_a_replica_gets_nothing_ahead(limits: dict[str, int]) -> None:
    node = Node(**limits)
    assert node.take(node.stream(), 1).left == 0


def test_what_others_got_ahead_takes_no_room_from_a_replica() -> None:
    limit = FAR_BYTES + 2 * GRANT_BYTES
    node = Node(storage=limit)
    shares = [node.take(node.stream(), 0) for _ in range(20)]
    assert 0 < sum(share.left for share in shares) <= limit
    last = node.stream()
    assert node.taken(last, GRANT_BYTES) == FAR_BYTES // GRANT_BYTES + 2, "to the last byte"
    assert not any(share.left for share in shares)


def test_a_tick_counts_again_only_what_was_stirred() -> None:
    node = Node(storage=1000)
    one, two, three = (node.stream(100) for _ in range(3))
    node.room.tick()
    assert node.room.led["A", False, 0] == 300
    node.take(one, 50)
    one.store.byte_count = 0
    two.store.byte_count = 0
    node.room.tick([holding_of(one)])
    assert node.room.led["A", False, 0] == 200, "what was taken for it, and what it had, is gone"
    assert node.room.held[False] == 200
    node.room.forget(three.assignment.gid)
    assert node.room.led["A", False, 0] == 100
    two.leading = False
    two.store.byte_count = 30
    node.room.tick([holding_of(two)])
    assert (node.room.led["A", False, 0], node.room.held[False]) == (0, 30)
    node.room.forget(77)


def test_limits_are_looked_up_once_for_streams_of_one_kind() -> None:
    node = Node(storage=1000)
    for number in range(50):
        node.stream(1, copies=1 + number % 2)
    node.room.tick(node.holdings())
    assert node.asked == [False, False] and node.room.held[False] == 50
    node.limits["A"] = AccountLimits(max_storage=10)
    assert node.taken(node.replicas[0], 1) == 1000 - 75, "until the next tick"
    node.room.tick([])
    assert node.taken(node.stream(), 1) == 0


def test_each_tier_has_a_limit_of_its_own() -> None:
    tiers = {"R1": AccountLimits(max_storage=1000), "R3": AccountLimits(max_storage=500)}
    node = Node(storage=2500, tiers=tiers)
    single, wide = node.stream(), node.stream(copies=3)
    assert node.taken(wide, 100) == 5
    assert node.error.err_code == 10002
    assert node.taken(single, 100) == 10, "what the other tier has does not count"
    assert node.taken(node.stream(copies=5), 1) == 0, "there is no such tier"
    node.room.tick()
    rows = [list(row) for row in json.loads(node.mesh.sent[-1])]
    assert sorted(rows) == [["A", False, 1, 1000, 1000], ["A", False, 3, 1500, 0]]


def test_what_other_nodes_tell_of_a_tier() -> None:
    node = Node(tiers={"R1": AccountLimits(max_storage=1000), "R3": AccountLimits(max_storage=500)})
    node.mesh.receive("n2", b'[["A",false,1,900],["A",false,3,300],["A",false,0,7]]')
    assert node.taken(node.stream(), 100) == 1
    assert node.taken(node.stream(copies=3), 100) == 4


TWO_TIERS = {"R1": AccountLimits(max_storage=1000), "R3": AccountLimits(max_storage=1000)}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_stream_that_gets_other_replicas_under_traffic_leaves_its_tier(before: int, after: int) -> None:
    node = Node(tiers=TWO_TIERS)
    stream = node.stream(copies=before)
    node.take(stream, 500)
    stream.ingest.pending_bytes = 500
    stream.assignment = SimpleNamespace(**{**vars(stream.assignment), "replicas": after})  # between two ticks
    node.take(stream, 100)
    stream.ingest.pending_bytes = 600
    assert node.room.led == {("A", False, before): 0, ("A", False, after): 600 * after}
    node.room.tick([holding_of(stream)])
    assert node.room.led == {("A", False, before): 0, ("A", False, after): 600 * after}
    assert node.room.held[False] == 600
    assert all(min(sizes) >= 0 for _, _, _, *sizes in json.loads(node.mesh.sent[-1]))
    assert node.taken(node.stream(copies=before), 100) == 10, "the tier that it left has all its room again"
    assert node.taken(stream, 100) == 4, "and the one that it came to has what it brought with it less"


@pytest.mark.parametrize("before", [None, TWO_TIERS])
def test_an_account_that_gets_or_loses_tiers_is_counted_anew(before: dict[str, AccountLimits] | None) -> None:
    node = Node(storage=1000, tiers=before)
    busy, idle = node.stream(), node.stream(700)
    node.room.tick()
    node.take(busy, 100)
    busy.ingest.pending_bytes = 100
    node.limits["A"] = AccountLimits(max_storage=1000, tiers=None if before else TWO_TIERS)
    node.take(busy, 50)
    busy.ingest.pending_bytes = 150
    node.room.tick([])  # nothing has happened in `idle`
    assert node.room.led == {("A", False, 0 if before else 1): 850}
    node.time.advance(TELL_SECONDS)
    node.room.tick([])
    assert json.loads(node.mesh.sent[-1]) == [["A", False, 0 if before else 1, 850, 850]]
    assert node.taken(idle, 100) == 1


def test_a_peer_that_has_miscounted_keeps_its_link() -> None:
    node = Node(storage=1000)
    node.mesh.receive("n2", b'[["A",false,0,-3400],["A",true,0,1%s]]' % (b"0" * 40))
    assert node.room._elsewhere["n2"] == {("A", False, 0): 0, ("A", True, 0): MAX_SIZE}
    assert node.taken(node.stream(), 100) == 10, "less than nothing makes no room"


def test_limits_are_asked_for_when_they_change_and_not_for_each_message() -> None:
    node = Node(storage=1000)
    asked: list[str] = []
    known = node.room._limits

    def limits(account: str) -> AccountLimits:
        asked.append(account)
        return known(account)

    node.room._limits = limits
    stream = node.stream()
    for _ in range(5):
        node.take(stream, 10)
        stream.store.byte_count += 10
    before = len(asked)
    node.take(stream, 10)
    stream.store.byte_count += 10
    assert len(asked) == before > 0
    node.limits["A"] = AccountLimits(max_storage=60)
    assert node.taken(stream, 10) > 0, "nobody has said that there is another limit"
    node.room.limits_changed()
    assert node.taken(stream, 10) == 0
    assert node.error.err_code == 10002


def test_a_node_whose_disk_had_no_room_takes_more_as_soon_as_it_has() -> None:
    node = Node(node=1000)
    node.by_disk = True
    stream = node.stream(400)
    assert node.room.trouble() == ""
    assert node.taken(stream, 100) == 6 and node.error.err_code == 10023
    assert "used up" in node.room.trouble(), "somebody else leads"
    node.room.tick()
    assert node.looked == [1000] and node.room.trouble()
    node.node = 5000
    node.room.tick()
    assert node.room.trouble() == "" and node.taken(stream, 100) == 40


def test_a_node_ends_to_be_in_trouble_when_something_goes_and_over_nothing_large() -> None:
    node = Node(node=10 * SMALL_BYTES)
    node.by_disk = True
    stream = node.stream(10 * SMALL_BYTES)
    assert node.taken(stream, 1) == 0 and node.room.trouble()
    stream.store.byte_count -= 1
    node.room.tick()
    assert node.room.trouble() == ""
    stream.store.byte_count = 8 * SMALL_BYTES
    assert node.taken(stream, 3 * SMALL_BYTES) == 0 and node.room.trouble() == "", "what is small finds room"


def test_what_the_configuration_lets_a_node_hold_and_what_is_in_memory_is_no_trouble() -> None:
    node = Node(node=1000)
    assert node.taken(node.stream(), 100) == 10 and node.room.trouble() == ""
    node = Node(node=1000)
    node.by_disk = True
    assert node.taken(node.stream(memory=True), 100) == 10 and node.room.trouble() == ""


def test_the_room_for_other_files_of_a_node() -> None:
    node = Node(node=1000)
    assert node.room.file_room == 1000
    node.take(node.stream(), 300)
    node.take(node.stream(memory=True), 100)
    assert node.room.file_room == 700
    node.node = 200
    assert node.room.file_room == 0
    node.node = -1
    assert node.room.file_room == MAX_SIZE
