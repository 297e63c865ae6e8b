"""Values by key against a scripted server (arrow/lookup.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[arrow]'")

from jetcluster.arrow.fetch import ReplicaLagError
from jetcluster.arrow.lookup import BucketLookup
from jetcluster.arrow.lookup_cache import KeyEntry, LookupCache
from jetcluster.arrow.options import OptionError
from jetcluster.client.stream_state import StreamError
from tests.unit.arrow.fake_server import T0, options_for, store_of
from tests.unit.arrow.test_bucket import ROWS, BucketPeer, row

MORE = [*ROWS, row("a", b"11"), row("new", b"12")]


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def peer() -> Iterator[BucketPeer]:
    before, after = store_of(ROWS), store_of(MORE)
    with BucketPeer(before, streams={id(before): "KV_S", id(after): "KV_S"}) as made:
        yield made


_open: list[BucketLookup] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def lookup_in(peer: BucketPeer, time: Time, max_age: float = 60.0, **given: object) -> BucketLookup:
    options = options_for(peer, stream="KV_S", **given)
    _open.append(BucketLookup(options, "S", LookupCache(max_age, 100, 10_000, time)))
    return _open[-1]


def grow(peer: BucketPeer) -> None:
    peer.leader = store_of(MORE)
    peer.streams[id(peer.leader)] = "KV_S"
    peer.replicas = [peer.leader]


def test_values_deleted_keys_and_keys_that_are_not_there(peer: BucketPeer) -> None:
    found = lookup_in(peer, Time()).find(["a", "c", "d", "nope", None, "b.x", "a", "*", ">", "b.*", "", "x y"])
    assert found == {
        "a": KeyEntry(b"4", 4, "PUT", T0 + 3000), "c": KeyEntry(None, 5, "DEL", T0 + 4000),
        "d": KeyEntry(None, 8, "PURGE", T0 + 7000), "b.x": KeyEntry(b"2", 2, "PUT", T0 + 1000),
    } | dict.fromkeys(["nope", None, "*", ">", "b.*", "", "x y"], KeyEntry())  # fmt: skip


def test_what_is_known_is_not_asked_for_until_it_is_old(peer: BucketPeer) -> None:
    time = Time()
    one = lookup_in(peer, time)
    one.find(["a", "new"])
    grow(peer)
    time.now = 59.0
    assert one.find(["a", "new"]) == {"a": KeyEntry(b"4", 4, "PUT", T0 + 3000), "new": KeyEntry()} and peer.gets == 1
    time.now = 60.0
    assert [entry.value for entry in one.find(["a", "new"]).values()] == [b"11", b"12"] and peer.gets == 2


def test_nothing_is_kept_for_no_time(peer: BucketPeer) -> None:
    one = lookup_in(peer, Time(), max_age=0.0)
    assert one.find(["a"])["a"].value == b"4"
    grow(peer)
    assert one.find(["a"])["a"].value == b"11"


def test_a_replica_that_lags_is_not_believed(peer: BucketPeer) -> None:
    behind = peer.leader
    grow(peer)
    peer.replicas = [behind, peer.leader]
    one = lookup_in(peer, Time())
    assert one.find(["a"])["a"].value == b"11" and peer.gets == 2
    one.close()
    peer.replicas = [behind]
    with pytest.raises(ReplicaLagError):
        lookup_in(peer, Time(), replicaWait="50ms").find(["a"])


def test_more_keys_than_the_cache_and_a_request_hold() -> None:
    store = store_of([row(f"k{n}", b"%d" % n * 20) for n in range(1030)])
    with BucketPeer(store, streams={id(store): "KV_S"}) as peer:
        cache = LookupCache(60.0, 50, 5_000, Time())
        one = BucketLookup(options_for(peer, stream="KV_S", requestTimeout="30s"), "S", cache)
        _open.append(one)
        found = one.find([f"k{n}" for n in range(1030)])
        assert [found[f"k{n}"].value for n in range(1030)] == [b"%d" % n * 20 for n in range(1030)]
        assert len(cache) <= 50 and cache.size <= 5_000 and peer.gets == 3


def test_a_connection_that_breaks_is_opened_again(peer: BucketPeer) -> None:
    one = lookup_in(peer, Time(), max_age=0.0)
    one.find(["a"])
    peer.drop()
    assert one.find(["a"])["a"].value == b"4"


def test_an_empty_bucket_has_no_key() -> None:
    store = store_of([])
    with BucketPeer(store, streams={id(store): "KV_S"}) as peer:
        assert lookup_in(peer, Time()).find(["a"]) == {"a": KeyEntry()} and not peer.gets


def test_what_cannot_be_looked_up(peer: BucketPeer) -> None:
    for bucket in ("", "a.b", "*"):
        with pytest.raises(OptionError, match="no bucket's name"):
            BucketLookup(options_for(peer), bucket, LookupCache(1.0, 1, 1))
    with pytest.raises(OptionError, match="mirror"):
        lookup_in(peer, Time(), readPreference="mirror:M")
    with pytest.raises(StreamError, match="allow_direct"):
        peer.info = lambda request: BucketPeer.info(peer, request) | {"config": {}}  # type: ignore[method-assign]
        lookup_in(peer, Time()).find(["a"])


class MirrorPeer(BucketPeer):
    """The same messages as those of a bucket M, which mirrors S."""

    def _reply(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
        return super()._reply(subject.replace(b"KV_M", b"KV_S"), reply, headers, payload)

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        found = super().info(request)
        return found | {"config": found["config"] | {"name": "KV_M", "mirror": {"name": "KV_S"}}}


def test_a_bucket_that_mirrors_another_one_has_the_subjects_of_that_one() -> None:
    empty, store = store_of([]), store_of(ROWS)
    with MirrorPeer(empty, streams={id(empty): "KV_M", id(store): "KV_M"}) as peer:
        options = options_for(peer, stream="KV_M")
        one = BucketLookup(options, "M", LookupCache(0.0, 100, 10_000, Time()))
        _open.append(one)
        assert one.find(["a"]) == {"a": KeyEntry()}, "the mirror has nothing yet"
        peer.leader, peer.replicas = store, [store]
        for _ in range(2):
            found = one.find(["a", "c", "nope"])
            assert found == {
                "a": KeyEntry(b"4", 4, "PUT", T0 + 3000), "c": KeyEntry(None, 5, "DEL", T0 + 4000), "nope": KeyEntry()
            }  # fmt: skip
