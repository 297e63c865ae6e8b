"""Messages that never expire, between others that do: no EXPIRE looks at more than a piece, and every replica looks at
the same ones (stream/apply/expiry.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetcluster.store.api import Msg
from jetcluster.store.batch import Batch
from jetcluster.stream.apply import expiry
from jetcluster.stream.log import commands
from jetcluster.stream.ports import SIDE_NEVER
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_jobs import SECOND, T0, Replica

TTLS = {"allow_msg_ttl": True, "max_age": 10 * SECOND}
NEVER = block("Nats-TTL: never")


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MAX_MESSAGES", 4)


def mixed(replica: Replica, count: int, payload: bytes = b"x") -> None:
    """Messages, of which every fifth expires."""
    for number in range(count):
        headers = b"" if number % 5 == 4 else NEVER
        replica.now += 1000
        batch = Batch.encode([b"a.x"], [headers], [payload])
        replica.apply(commands.encode_publish(replica.now, batch))


def looked_at(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences that searches look at from now on."""
    looked: list[int] = []
    scan = replica.store.queries.scan

    def watched(subject_filter: bytes, seq: int) -> Iterator[Msg]:
        for message in scan(subject_filter, seq):
            looked.append(message.seq)
            yield message

    monkeypatch.setattr(replica.store.queries, "scan", watched)
    return looked


def expire(replica: Replica) -> int:
    removed = replica.apply(commands.encode_expire(replica.now))
    assert isinstance(removed, int)
    return removed


def test_no_command_looks_at_more_than_a_piece_and_none_looks_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(TTLS)
    mixed(replica, 50)
    replica.now += 11 * SECOND
    mixed(replica, 5)
    looked = looked_at(replica, monkeypatch)
    everything: list[int] = []
    removed = count = 0
    while (due := replica.machine.next_expiry) is not None and due <= replica.now:
        looked.clear()
        removed += expire(replica)
        assert len(looked) <= 5, "one more, to see where the next one begins"
        everything += looked[:4]
        count += 1
        assert count < 20
    assert removed == 10 and everything[:50] == list(range(1, 51))
    assert replica.seqs() == [seq for seq in range(1, 51) if seq % 5] + [51, 52, 53, 54, 55]

    replica.reopen()
    looked = looked_at(replica, monkeypatch)
    assert replica.machine.next_expiry == T0 + 11 * SECOND + 51_000 + 10 * SECOND, "known at once after a restart"
    replica.now += 11 * SECOND
    assert expire(replica) == 0 and expire(replica) == 1
    assert looked == [51, 52, 53, 54, 55, 55], "those that never expire were passed for good"


def test_large_messages_are_counted_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MAX_BYTES", 100)
    replica = Replica(TTLS)
    mixed(replica, 10, b"x" * 60)
    replica.now += 11 * SECOND
    looked = looked_at(replica, monkeypatch)
    for first in (1, 3, 5):
        looked.clear()
        expire(replica)
        assert looked == [first, first + 1, first + 2]


def test_an_update_looks_at_no_more_than_a_piece_either(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica({"allow_msg_ttl": True})
    mixed(replica, 30)
    replica.now += 11 * SECOND
    looked = looked_at(replica, monkeypatch)
    assert replica.update(TTLS) == 0 and len(looked) <= 5
    assert expire(replica) == 1, "the next one goes on"


@pytest.mark.parametrize("marking", [False, True])
def test_replicas_that_restart_at_other_times_or_take_the_state_over_look_at_the_same(marking: bool) -> None:
    config = {**TTLS, "allow_rollup_hdrs": True} | ({"subject_delete_marker_ttl": SECOND} if marking else {})
    steady, restless, copied = Replica(config), Replica(config), Replica(config)
    for turn in range(30):
        for replica in (steady, restless, copied):
            mixed(replica, turn % 4)
            replica.now += 2 * SECOND
            expire(replica)
        restless.reopen()
        if turn % 3 == 0:
            copied.install(steady)
            copied.index, copied.now = steady.index, steady.now
        assert steady.machine.hash == restless.machine.hash == copied.machine.hash
        sides = [list(replica.store.side_scan(SIDE_NEVER)) for replica in (steady, restless, copied)]
        assert sides[0] == sides[1] == sides[2]
    for _ in range(60):
        for replica in (steady, restless, copied):
            expire(replica)
    assert steady.machine.hash == restless.machine.hash == copied.machine.hash
    assert steady.seqs() == restless.seqs() == copied.seqs()


def test_a_stream_that_was_empty_begins_again() -> None:
    replica = Replica(TTLS)
    mixed(replica, 4)
    replica.now += 11 * SECOND
    expire(replica)
    replica.purge(b"")
    expire(replica)
    assert list(replica.store.side_scan(SIDE_NEVER)) == []
    mixed(replica, 5)
    replica.now += 11 * SECOND
    while (due := replica.machine.next_expiry) is not None and due <= replica.now:
        expire(replica)
    assert replica.seqs() == [5, 6, 7, 8]
