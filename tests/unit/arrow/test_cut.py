"""Ends of streams that are proven to be of one moment, or as fresh as a query asks for (arrow/cut.py)."""

from __future__ import annotations

import bisect
import itertools
import json
import random
from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster.arrow import cut, resolve
from jetcluster.arrow.cut import CutError, Ends, consistent_ends, proven
from jetcluster.client.reply import NoRespondersError
from jetcluster.client.stream_state import StreamError
from tests.unit.arrow.fake_server import StreamPeer, numbered, options_for, store_of


def test_what_rounds_prove() -> None:
    still, moved = {"A": 1, "B": 2}, {"A": 1, "B": 3}
    assert proven([still]) is None
    assert proven([still, still]) == still
    assert proven([still, moved]) is None
    assert proven([{"A": 1, "B": 1}, still, moved]) == still, "only B moved: A was at 1 when B was at 2"
    assert proven([{"A": 0, "B": 2}, still, moved]) is None, "A moved and then B: none of the rounds is of one moment"
    assert proven([{"A": 7}]) == {"A": 7}


class Streams:
    """Streams that grow at given times, asked by rounds that take time; `clock` is the time of the planner."""

    def __init__(self, seed: int, rate: float) -> None:
        self.random = random.Random(seed)
        self.clock = 0.0
        names = ["A", "B", "C"][: self.random.randint(2, 3)]
        self.grown: dict[str, list[float]] = {}
        for name in names:
            gaps = (self.random.expovariate(rate * self.random.choice([0.1, 1, 5])) for _ in range(400))
            self.grown[name] = list(itertools.accumulate(gaps))

    def at(self, when: float) -> Ends:
        return {name: bisect.bisect_right(times, when) for name, times in self.grown.items()}

    def ask(self) -> Ends:
        """Each stream at a moment of its own, in any order."""
        begun = self.clock
        self.clock += self.random.uniform(0.5, 1.5)
        return {name: self.at(self.random.uniform(begun, self.clock))[name] for name in self.grown}

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def moments(self) -> list[Ends]:
        """The messages that the streams had together, at every moment so far."""
        times = sorted(when for grown in self.grown.values() for when in grown if when <= self.clock)
        return [self.at(when) for when in (0.0, *times)]


def cuts(rule: Callable[..., Ends | None], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """(cuts, those that are of no moment) by a rule."""
    monkeypatch.setattr(cut, "proven", rule)
    found = wrong = 0
    for seed in range(300):
        streams = Streams(seed, rate=random.Random(seed).choice([0.02, 0.1, 0.3]))
        try:
            ends = consistent_ends(streams.ask, 60.0, lambda: streams.clock, streams.sleep)  # noqa: B023
        except CutError:
            continue
        found += 1
        wrong += ends not in streams.moments()
    return found, wrong


def test_a_cut_is_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    found, wrong = cuts(proven, monkeypatch)
    assert found > 180, "most are found"
    assert wrong == 0


def one_moved(rounds: Sequence[Ends]) -> Ends | None:
    """The rule of three rounds, for two."""
    if len(rounds) == 1 or sum(rounds[-2][name] != rounds[-1][name] for name in rounds[-1]) > 1:
        return None
    return rounds[-2]


@pytest.mark.parametrize(
    "rule",
    [lambda rounds: rounds[-1], lambda rounds: rounds[-1] if len(rounds) == 3 else None, one_moved],
    ids=["the first round", "the third round", "one stream moved between two rounds"],
)
def test_weaker_rules_show(rule: Callable[..., Ends | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The model finds cuts that are of no moment."""
    _, wrong = cuts(rule, monkeypatch)
    assert wrong > 0


def test_streams_that_never_stand_still_are_named() -> None:
    counter = itertools.count()
    clock = itertools.count()
    with pytest.raises(CutError, match=r"in 5 s \(cutTimeout\) at which the streams ended together: A, B grew all"):
        consistent_ends(
            lambda: {"A": next(counter), "B": next(counter), "C": 1}, 5.0, lambda: float(next(clock)), lambda _: None
        )


def test_a_query_reads_to_the_end_that_is_proven() -> None:
    """The leader that answers STREAM.INFO was deposed, and does not know of the last ten messages."""
    with StreamPeer(store_of(numbered(20)), replicas=[store_of(numbered(30))]) as peer:
        assert resolve.batch_extents(options_for(peer))[0].high == 21
        assert resolve.batch_extents(options_for(peer, consistent="true"))[0].high == 31
        assert resolve.batch_extents(options_for(peer, maxStaleness="2s"))[0].high == 31
        asked = [json.loads(payload) for subject, _, _, payload in peer.published if b"DIRECT" in subject]
    assert [one.get("consistency") for one in asked] == ["linearizable", None]
    assert [one.get("max_staleness") for one in asked] == [None, 2_000_000_000]


def test_a_proven_end_before_the_leaders_is_asked_for_again() -> None:
    """The stream was deleted and created in between."""
    with StreamPeer(store_of(numbered(20)), replicas=[store_of(numbered(3)), store_of(numbered(20))]) as peer:
        assert resolve.batch_extents(options_for(peer, consistent="true"))[0].high == 21
        assert peer.gets == 2
        assert resolve.batch_extents(options_for(peer, maxStaleness="10m"))[0].high == 21, "the fresher of both"


def test_what_nobody_proves_is_asked_for_again_and_then_refused() -> None:
    with StreamPeer(store_of(numbered(20))) as peer:
        peer.unproven = 2
        assert resolve.batch_extents(options_for(peer, consistent="true"))[0].high == 21
        peer.unproven = 1000
        with pytest.raises(NoRespondersError, match=r"S: no replica proves how fresh it is \(503 No Leader\)"):
            resolve.batch_extents(options_for(peer, maxStaleness="0s", retryTimeout="300ms"))


@pytest.mark.parametrize("ours", [True, False])
def test_a_sequence_that_is_asked_for_is_waited_for(ours: bool) -> None:
    store = store_of(numbered(20))
    with StreamPeer(store, ours=ours) as peer:
        assert resolve.batch_extents(options_for(peer, minLastSeq=20))[0].high == 21
        with pytest.raises(StreamError, match="S ends at 20, and minLastSeq asks for 21"):
            resolve.batch_extents(options_for(peer, minLastSeq=21, replicaWait="200ms"))


def test_nats_server_proves_nothing() -> None:
    peer = StreamPeer(store_of(numbered(20)), ours=False)
    with peer, pytest.raises(StreamError, match="need jetcluster's servers"):
        resolve.batch_extents(options_for(peer, consistent="true"))


def test_subjects_are_listed_by_a_leader_that_has_the_end() -> None:
    """mode=last would miss a subject that came between a deposed leader's end and the proven one."""
    with StreamPeer(store_of(numbered(20)), replicas=[store_of(numbered(30))]) as peer:
        with pytest.raises(cut.ChangedError, match="S: the leader that answers ends before 30"):
            resolve.batch_extents(options_for(peer, consistent="true", mode="last", retryTimeout="300ms"))
        peer.leader = store_of(numbered(31))
        (extent,) = resolve.batch_extents(options_for(peer, maxStaleness="1s", mode="last"))
        assert (extent.high, sorted(extent.subjects.names)) == (32, ["a.x", "a.y", "b.x"])
