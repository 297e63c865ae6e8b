"""Agreement on the meta group's first peers (cluster/bootstrap.py)."""

from __future__ import annotations

import pytest

from jetcluster.cluster.bootstrap import (
    LONE_SECONDS,
    PARTIAL_SECONDS,
    STABLE_SECONDS,
    Announcement,
    Bootstrap,
    Verdict,
)

ABC = ("A", "B", "C")


def settled(known: tuple[str, ...] = ABC, meta: tuple[str, ...] = ()) -> Announcement:
    return Announcement(known, settled=True, meta_peers=meta)


def node(me: str = "A", expected: int = 3, **others: Announcement) -> Bootstrap:
    return Bootstrap(me=me, expected=expected, started=0.0, announcements=dict(others))


def test_all_agree_creates_after_the_stable_interval() -> None:
    boot = node(B=settled(), C=settled())
    assert boot.decide(settled(), 1.0) == (Verdict.WAIT, ())
    assert boot.decide(settled(), 1.0 + STABLE_SECONDS) == (Verdict.CREATE, ABC)


def test_a_peer_that_sees_another_set_blocks_creation() -> None:
    boot = node(B=settled(), C=settled(("A", "C")))
    boot.decide(settled(), 1.0)
    assert boot.decide(settled(), 1.0 + STABLE_SECONDS * 2)[0] is Verdict.WAIT


def test_a_changed_set_restarts_the_stable_interval() -> None:
    boot = node(expected=2, B=settled(("A", "B")))
    boot.decide(settled(("A", "B")), 1.0)
    boot.announcements = {"B": settled(), "C": settled()}
    assert boot.decide(settled(), 1.0 + STABLE_SECONDS)[0] is Verdict.WAIT
    assert boot.decide(settled(), 1.0 + 2 * STABLE_SECONDS) == (Verdict.CREATE, ABC)


def test_minority_never_starts_alone() -> None:
    boot = node()
    mine = Announcement(("A",), settled=False)
    assert boot.decide(mine, PARTIAL_SECONDS * 100)[0] is Verdict.WAIT


def test_majority_starts_without_the_missing_node_after_a_while() -> None:
    pair = Announcement(("A", "B"), settled=False)
    boot = node(B=pair)
    assert boot.decide(pair, PARTIAL_SECONDS - 1)[0] is Verdict.WAIT
    boot.decide(pair, PARTIAL_SECONDS)
    assert boot.decide(pair, PARTIAL_SECONDS + STABLE_SECONDS) == (Verdict.CREATE, ("A", "B"))


def test_running_cluster_is_joined_never_recreated() -> None:
    boot = node("D", expected=4, A=settled(("A", "B", "C", "D"), meta=ABC))
    assert boot.decide(settled(("A", "D")), 1.0) == (Verdict.JOIN, ABC)


def test_member_that_missed_the_creation_adopts_it() -> None:
    boot = node("B", A=settled(meta=ABC))
    assert boot.decide(settled(("A", "B")), 1.0) == (Verdict.ADOPT, ABC)


def test_node_without_routes_waits_then_starts_alone() -> None:
    boot = node(expected=1)
    alone = settled(("A",))
    assert boot.decide(alone, LONE_SECONDS - 0.1)[0] is Verdict.WAIT
    boot.decide(alone, LONE_SECONDS)
    assert boot.decide(alone, LONE_SECONDS + STABLE_SECONDS) == (Verdict.CREATE, ("A",))


def test_announcement_round_trip_and_garbage() -> None:
    original = Announcement(ABC, settled=True, meta_peers=("A",))
    assert Announcement.decode(original.encode()) == original
    for raw in (b"", b"[]", b"{}", b'{"known": 1}', b'{"known": [1]}', b'{"known": ["x"], "meta_peers": 7}'):
        with pytest.raises(ValueError):
            Announcement.decode(raw)


def test_a_peer_with_an_open_route_blocks_creation_at_first() -> None:
    boot = node(expected=2, B=Announcement(("A", "B"), settled=False))
    pair = settled(("A", "B"))
    boot.decide(pair, 1.0)
    assert boot.decide(pair, 1.0 + STABLE_SECONDS * 2)[0] is Verdict.WAIT
    boot.announcements["B"] = pair
    boot.decide(pair, 2.0)
    assert boot.decide(pair, 2.0 + STABLE_SECONDS) == (Verdict.CREATE, ("A", "B"))
