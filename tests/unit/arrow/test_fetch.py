"""Ranges are read whole, or not at all: replicas that lag, holes, servers that go (arrow/fetch.py)."""

from __future__ import annotations

import json
import time

import pytest

from jetcluster.arrow import fetch
from jetcluster.arrow.fetch import RangeFetch, ReplicaLagError, merged
from jetcluster.arrow.frames import sequence
from jetcluster.arrow.link import Link
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import Target
from jetcluster.client.reply import NoRespondersError, ServerError
from jetcluster.client.stream_state import StreamError
from jetcluster.stream.read.direct_get import Frame
from tests.unit.arrow.fake_server import StreamPeer, numbered, options_for, store_of
from tests.unit.client.fake_server import Peer

TARGET = Target("S", "S", "c", "n1", ("n1",))


def fetch_of(options: SourceOptions, low: int, high: int, subject: str = ">") -> RangeFetch:
    return RangeFetch(Link(options, TARGET, 0), options, "S", subject, low, high)


def seqs(one: RangeFetch) -> list[int]:
    try:
        return [sequence(head) for batch in one for head in batch.heads]
    finally:
        one.link.close()


@pytest.mark.parametrize("ours", [True, False])
def test_a_range_comes_whole_in_batches_and_nothing_beyond_it(ours: bool) -> None:
    with StreamPeer(store_of(numbered(50)), ours=ours) as peer:
        one = fetch_of(options_for(peer, fetchBatch=7), 3, 41)
        assert seqs(one) == list(range(3, 41)) and one.link.retries == 0
        assert peer.leader_asked == 0, "a range without a gap at its end needs no proof"


def test_of_a_dense_stream_two_answers_are_under_way() -> None:
    """And none is asked for twice, nor beyond the end."""
    with StreamPeer(store_of(numbered(50))) as peer:
        one = fetch_of(options_for(peer, fetchBatch=5), 1, 46)
        ahead: list[int] = []
        for batch in one:
            ahead.append(len(one._ahead))
            assert len(batch.heads) == 5
        one.link.close()
        asked = [json.loads(payload)["seq"] for subject, _, _, payload in peer.published if b"DIRECT" in subject]
    assert ahead == [2] * 7 + [1, 0]
    assert asked == list(range(1, 46, 5))


def test_behind_a_gap_what_was_asked_for_early_is_asked_for_anew() -> None:
    gaps = [*range(12, 15), *range(41, 80), *range(98, 100)]
    with StreamPeer(store_of(numbered(100), gaps)) as peer:
        one = fetch_of(options_for(peer, fetchBatch=5), 1, 101)
        assert seqs(one) == [n for n in range(1, 101) if n not in gaps] and one.link.retries == 0
        assert peer.gets < 24, "a guess that was wrong costs a question, not one for each that follows"


@pytest.mark.parametrize("prefetch", [True, False])
def test_an_answer_cut_by_bytes_goes_on(prefetch: bool) -> None:
    with StreamPeer(store_of([("a", b"", b"x" * 100)] * 20)) as peer:
        one = fetch_of(options_for(peer, fetchMaxBytes=350, prefetch=prefetch), 1, 21)
        assert seqs(one) == list(range(1, 21)) and peer.gets > 4


@pytest.mark.parametrize("ours", [True, False])
def test_a_replica_that_lags_is_not_the_end(ours: bool) -> None:
    """And without the proof it would be: then rows are missing and nobody says so."""
    rows = numbered(30)

    def read() -> list[int]:
        behind = [
            store_of(rows[:10]),
            store_of(rows[:10]),
            store_of(rows[:10]),
            store_of(rows[:17]),
            store_of(rows[:17]),
        ]
        with StreamPeer(store_of(rows), [*behind, store_of(rows)], ours=ours) as peer:
            one = fetch_of(options_for(peer), 1, 31)
            found = seqs(one)
            assert one.link.retries or found != list(range(1, 31))
            return found

    assert read() == list(range(1, 31))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RangeFetch, "_is_covered", lambda *_: True)
        assert read() == list(range(1, 11)), "the test would not notice a missing proof"


def test_a_filter_costs_what_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has no upper bound: what lies beyond the range would be sent to no purpose."""
    monkeypatch.setattr(fetch, "FIRST_FILTERED", 16)
    sent: list[int] = []

    def count(_: int, frames: list[Frame]) -> list[Frame]:
        sent.append(len(frames) - 1)
        return frames

    store = store_of(numbered(9000, tuple(f"s.{n}" for n in range(20))))
    with StreamPeer(store, spoil=count) as peer:
        one = fetch_of(options_for(peer, prefetch="false"), 1, 3001, "s.7")
        assert seqs(one) == list(range(8, 3001, 20)) and one.link.retries == 0
    assert sum(sent) < 150 * 1.3, "of 450 that match, 150 are in the range"
    assert len(sent) <= 3


def test_a_replica_that_lags_is_told_what_to_wait_for() -> None:
    """Not the end of the range: a replica that is far behind is read as far as it has come."""
    rows = numbered(30)
    leader = store_of(rows, gaps=range(11, 14))
    with StreamPeer(leader, [store_of(rows[:10]), store_of(rows[:10]), store_of(rows[:12]), leader]) as peer:
        one = fetch_of(options_for(peer), 1, 31)
        assert seqs(one) == [*range(1, 11), *range(14, 31)] and one.link.retries == 2
        asked = [json.loads(payload) for subject, _, _, payload in peer.published if b"DIRECT" in subject]
    assert [(one["seq"], one.get("min_last_seq")) for one in asked] == [(1, None), (11, None), (11, 14), (11, 14)]


def test_a_replica_that_goes_on_lagging_is_an_error_that_says_so() -> None:
    rows = numbered(30)
    with StreamPeer(store_of(rows), [store_of(rows[:10])]) as peer:
        one = fetch_of(options_for(peer, replicaWait="150ms"), 1, 31)
        with pytest.raises(
            ReplicaLagError, match="replica on n1 has nothing from 11 on and the leader does, it has applied 10"
        ):
            seqs(one)


def test_a_gap_at_the_end_is_proven_by_the_replica_or_by_the_leader() -> None:
    store = store_of(numbered(30), gaps=range(21, 31))
    for ours in (True, False):
        with StreamPeer(store, ours=ours) as peer:
            assert seqs(fetch_of(options_for(peer), 1, 29)) == list(range(1, 21))
            assert seqs(fetch_of(options_for(peer), 21, 31)) == []
            assert (peer.leader_asked > 0) is not ours
    with StreamPeer(store, ours=False) as peer:
        assert seqs(fetch_of(options_for(peer), 1, 31, "b.*")) == [3, 6, 9, 12, 15, 18]
        assert peer.leader_asked == 1


def test_a_hole_in_an_answer_is_seen_and_asked_for_again() -> None:
    def spoil(number: int, frames: list[Frame]) -> list[Frame]:
        return frames[:4] + frames[5:] if number == 1 else frames[:-2] + frames[-1:] if number == 2 else frames

    with StreamPeer(store_of(numbered(30)), spoil=spoil) as peer:
        one = fetch_of(options_for(peer), 1, 31)
        assert seqs(one) == list(range(1, 31)) and one.link.retries == 2


def test_an_answer_without_an_end_is_asked_of_the_next_server() -> None:
    silent = StreamPeer(store_of(numbered(30)), spoil=lambda _, frames: frames[:10])
    with silent, StreamPeer(store_of(numbered(30))) as good:
        one = fetch_of(options_for(silent, good), 1, 31)
        assert seqs(one) == list(range(1, 31)) and one.link.retries == 1 and good.gets == 1


def test_a_server_that_goes_away_between_two_batches() -> None:
    first = StreamPeer(store_of(numbered(30)))
    with first, StreamPeer(store_of(numbered(30))) as second:
        one = fetch_of(options_for(first, second, fetchBatch=10), 1, 31)
        batches = iter(one)
        got = [sequence(head) for head in next(batches).heads]
        first.drop()
        got += [sequence(head) for batch in batches for head in batch.heads]
        one.link.close()
        assert got == list(range(1, 31))


def test_nobody_answers() -> None:
    store = store_of(numbered(5))
    with StreamPeer(store, [None, None, store]) as peer:
        one = fetch_of(options_for(peer), 1, 6)
        assert seqs(one) == [1, 2, 3, 4, 5] and one.link.retries == 2
    with StreamPeer(store, [None]) as peer, pytest.raises(NoRespondersError, match="allow_direct"):
        seqs(fetch_of(options_for(peer, replicaWait="100ms", retryTimeout="100ms"), 1, 6))


@pytest.mark.parametrize("ours", [True, False])
def test_a_stream_that_is_deleted_meanwhile_is_told_soon(monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
    """And not looked for among its replicas until patience ends, 30 seconds by default."""
    monkeypatch.setattr(fetch, "LOOK_SECONDS", 0.1)
    with StreamPeer(store_of(numbered(30)), ours=ours) as peer:
        one = fetch_of(options_for(peer, fetchBatch=10, prefetch="false", retryTimeout="20s"), 1, 31)
        batches = iter(one)
        assert len(next(batches).heads) == 10
        peer.deleted = True
        begun = time.monotonic()
        with pytest.raises(StreamError, match="there is no stream S"):
            next(batches)
        assert time.monotonic() - begun < 10
        one.link.close()


def test_a_refusal_is_raised_at_once() -> None:
    refusal = b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
    with Peer(lambda *_: refusal) as peer, pytest.raises(ServerError, match="Permissions"):
        seqs(fetch_of(options_for(peer), 1, 6))


@pytest.mark.parametrize("preference", ["any", "leader", "local", "peer:n1"])
def test_which_replica_is_asked(preference: str) -> None:
    with StreamPeer(store_of(numbered(5))) as peer:
        assert seqs(fetch_of(options_for(peer, readPreference=preference), 1, 6)) == [1, 2, 3, 4, 5]
        assert peer.published[0][0] == b"$JS.API.DIRECT.PEER.S.n1"
    with StreamPeer(store_of(numbered(5)), ours=False) as peer:  # nats-server: the server of that name
        assert seqs(fetch_of(options_for(peer, readPreference=preference), 1, 6)) == [1, 2, 3, 4, 5]
        assert peer.published[0][0] == b"$JS.API.DIRECT.GET.S"


def test_a_leader_that_cannot_be_addressed_any_more_leaves_it_to_the_others() -> None:
    with StreamPeer(store_of(numbered(5))) as peer:
        options = options_for(peer, readPreference="leader")
        gone = Target("S", "S", "c", "gone", ("gone", "n1"))
        one = RangeFetch(Link(options, gone, 0), options, "S", ">", 1, 6)
        assert seqs(one) == [1, 2, 3, 4, 5]


def test_several_subjects_come_by_sequence_each_message_once() -> None:
    with StreamPeer(store_of(numbered(12))) as peer:
        options = options_for(peer, subjects="a.*, *.x")
        link = Link(options, TARGET, 0)
        fetches = [RangeFetch(link, options, "S", one, 1, 13) for one in options.subjects]
        assert [sequence(h) for batch in merged(fetches) for h in batch.heads] == list(range(1, 13))
        link.close()


def test_several_subjects_with_large_messages_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand messages of megabytes would be more than an Arrow array can hold."""
    monkeypatch.setattr(fetch, "MERGED_BYTES", 10_000)
    rows = [(subject, headers, payload * 2000) for subject, headers, payload in numbered(12)]
    with StreamPeer(store_of(rows)) as peer:
        options = options_for(peer, subjects="a.*, *.x")
        link = Link(options, TARGET, 0)
        batches = list(merged([RangeFetch(link, options, "S", one, 1, 13) for one in options.subjects]))
        link.close()
    assert [sequence(head) for batch in batches for head in batch.heads] == list(range(1, 13))
    assert [batch.count for batch in batches] == [5, 5, 2]


@pytest.mark.parametrize("ours", [True, False])
def test_a_mirror_that_was_not_asked_for_is_not_believed(ours: bool) -> None:
    """It answers for its origin, from another sequence on, or with nothing."""
    rows = numbered(30)
    whole, less = store_of(rows), store_of(rows, gaps=[*range(1, 11), *range(26, 31)])
    with StreamPeer(whole, [less, less, whole], ours=ours, streams={id(less): "M"}, addressable=False) as peer:
        one = fetch_of(options_for(peer), 1, 31)
        assert seqs(one) == list(range(1, 31)) and one.link.retries > 1
    with StreamPeer(whole, [less, less, whole], ours=ours, streams={id(less): "M"}, addressable=False) as peer:
        one = fetch_of(options_for(peer), 26, 31)
        assert seqs(one) == list(range(26, 31)), "its word for what it has applied says nothing of what it keeps"
    more = store_of(rows)
    whole.delete_all([12, 13])
    with StreamPeer(whole, [more, more, whole], ours=ours, streams={id(more): "M"}, addressable=False) as peer:
        found = seqs(fetch_of(options_for(peer), 11, 26))
        assert found == [11, *range(14, 26)], "what was deleted is not read from a mirror"
