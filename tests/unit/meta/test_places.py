"""Counts and indexes of the assignments (meta/places.py); `test_machine` compares them with a walk."""

from __future__ import annotations

from dataclasses import replace

from jetcluster.meta.places import Places
from jetcluster.meta.state import Assignment
from jetcluster.model.stream import StreamConfig


def stream(gid: int, *peers: str, replicas: int = 3, max_bytes: int = -1) -> Assignment:
    config = StreamConfig(name=f"S{gid}", num_replicas=replicas, max_bytes=max_bytes).normalised().to_wire()
    return Assignment(gid, "A", f"S{gid}", config, peers, 1, peers[0], 1)


def test_what_is_dropped_leaves_nothing_behind() -> None:
    streams = [stream(2, "a", "b", "c", max_bytes=10), stream(3, "a", "b"), stream(4, "d", replicas=1, max_bytes=5)]
    places = Places(streams)
    assert places.on("a") == {2, 3} and places.on("d") == {4} and places.on("x") == set()
    assert places.misplaced({"a", "b", "c"}) == {3, 4}
    assert places.misplaced({"c", "d"}) == {2, 3}
    assert places.without({"c"}) == {3, 4} and places.without({"a", "d"}) == set() == Places().without({"a"})
    assert (places.leaders["a"], places.replicated["b"], places.replicated["d"]) == (2, 2, 0)
    assert (places.reserved["c", "file"], places.reserved["d", "file"]) == (10, 5)
    assert places.claimed["A", "file"] == 35
    assert (places.tiers["A", 3, ""], places.tiers["A", 3, "file"]) == (2, 10)
    for assignment in streams:
        places.drop(assignment)
    counted = (places.leaders, places.replicated, places.reserved, places.claimed, places.tiers)
    assert not any(sum(counter.values()) for counter in counted)
    assert all(places.on(peer) == set() for peer in "abcd") and places.misplaced({"a"}) == set()


def mirror(gid: int, of: str, **link: object) -> Assignment:
    made = stream(gid, "a")
    return replace(made, config={**made.config, "mirror": {"name": of, **link}})


def test_mirrors_are_found_by_their_upstream() -> None:
    streams = [
        mirror(9, "S2"),
        mirror(3, "S2"),
        mirror(4, "S3"),
        mirror(5, "S2", external={"api": "x"}),
        stream(2, "a"),
    ]
    places = Places(streams)
    assert places.mirrors_of("A", "S2") == ["S3", "S9"] and places.mirrors_of("A", "S3") == ["S4"]
    assert places.mirrors_of("B", "S2") == places.mirrors_of("A", "S4") == []
    for assignment in streams:
        places.drop(assignment)
    assert places.mirrors_of("A", "S2") == []


def test_a_stream_that_moves_is_found_at_its_new_peers() -> None:
    old = stream(2, "a", "b", "c")
    places = Places([old])
    new = replace(old, peers=("c", "d", "e"), leader_hint="c")
    places.drop(old)
    places.put(new)
    assert [sorted(places.on(peer)) for peer in "abcde"] == [[], [], [2], [2], [2]]
    assert places.misplaced({"a", "b"}) == {2}
