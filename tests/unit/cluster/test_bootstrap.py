"""Agreement on the meta group's first peers (cluster/bootstrap.py)."""

from __future__ import annotations

import pytest

from jetcluster.cluster.bootstrap import (
    PARTIAL_SECONDS,
    STABLE_SECONDS,
    TELL_SECONDS,
    Announcement,
    Bootstrap,
    Decision,
    Founding,
    Verdict,
)

ABC = ("A", "B", "C")


def settled(known: tuple[str, ...] = ABC, meta: tuple[str, ...] = (), cluster: str = "X") -> Announcement:
    return Announcement(known, settled=True, meta_peers=meta, cluster_id=cluster if meta else "")


def node(me: str = "A", expected: int = 3, **others: Announcement) -> Bootstrap:
    return Bootstrap(me=me, expected=expected, started=0.0, announcements=dict(others))


def test_all_agree_creates_after_the_stable_interval() -> None:
    boot = node(B=settled(), C=settled())
    assert boot.decide(settled(), 1.0) == Decision(Verdict.WAIT)
    assert boot.decide(settled(), 1.0 + STABLE_SECONDS) == Decision(Verdict.CREATE, ABC)


def test_another_worker_of_a_machine_founds_nothing_and_joins() -> None:
    boot = node(B=settled(), C=settled())
    boot.founding = Founding.NEVER
    for now in (1.0, 2.0, TELL_SECONDS):
        assert boot.decide(settled(), now) == Decision(Verdict.WAIT)
    assert boot.complaint(settled(), TELL_SECONDS).startswith("JetStream waits for the first worker of this machine")
    boot.heard("B", settled(meta=("B", "C")), wall_ns=0)
    assert boot.decide(settled(), TELL_SECONDS) == Decision(Verdict.JOIN, ("B", "C"), "X")


def test_a_peer_that_sees_another_set_blocks_creation() -> None:
    boot = node(B=settled(), C=settled(("A", "C")))
    boot.decide(settled(), 1.0)
    assert boot.decide(settled(), 1.0 + STABLE_SECONDS * 2)[0] is Verdict.WAIT


def test_a_changed_set_restarts_the_stable_interval() -> None:
    boot = node(expected=2, B=settled(("A", "B")))
    boot.decide(settled(("A", "B")), 1.0)
    boot.announcements = {"B": settled(), "C": settled()}
    assert boot.decide(settled(), 1.0 + STABLE_SECONDS)[0] is Verdict.WAIT
    assert boot.decide(settled(), 1.0 + 2 * STABLE_SECONDS) == Decision(Verdict.CREATE, ABC)


def test_minority_never_starts_alone() -> None:
    boot = node()
    mine = Announcement(("A",), settled=False)
    assert boot.decide(mine, PARTIAL_SECONDS * 100)[0] is Verdict.WAIT


def test_majority_starts_without_the_missing_node_after_a_while() -> None:
    pair = Announcement(("A", "B"), settled=False)
    boot = node(B=pair)
    assert boot.decide(pair, PARTIAL_SECONDS - 1)[0] is Verdict.WAIT
    boot.decide(pair, PARTIAL_SECONDS)
    assert boot.decide(pair, PARTIAL_SECONDS + STABLE_SECONDS) == Decision(Verdict.CREATE, ("A", "B"))


def test_nobody_starts_without_the_missing_node_while_no_majority_of_the_clocks_agrees() -> None:
    late = PARTIAL_SECONDS + 100 * STABLE_SECONDS
    pair = Announcement(("A", "B"), settled=False, wall_ns=7200 * 10**9)
    boot = node()
    boot.heard("B", pair, wall_ns=10**9)
    for now in (PARTIAL_SECONDS, late):
        assert boot.decide(pair, now).verdict is Verdict.WAIT
    assert boot.complaint(pair, TELL_SECONDS) == "JetStream waits for more nodes: the wall clocks of those found differ"
    boot.heard("C", settled(), wall_ns=0)
    boot.heard("B", settled(), wall_ns=0)
    boot.heard("B", Announcement(ABC, settled=True, wall_ns=7200 * 10**9), wall_ns=10**9)
    boot.decide(settled(), late)
    assert boot.decide(settled(), late + STABLE_SECONDS) == Decision(Verdict.CREATE, ABC), "all are there"


def test_one_clock_that_differs_does_not_hold_up_a_majority_that_agrees() -> None:
    known = ("A", "B", "C")
    mine = Announcement(known, settled=False, wall_ns=10**9)
    boot = node(expected=4)
    boot.heard("B", mine, wall_ns=2 * 10**9)
    boot.heard("C", Announcement(known, settled=False, wall_ns=7200 * 10**9), wall_ns=10**9)
    boot.decide(mine, PARTIAL_SECONDS)
    assert boot.decide(mine, PARTIAL_SECONDS + STABLE_SECONDS) == Decision(Verdict.CREATE, known)


def test_a_clock_that_was_set_right_or_left_differs_no_more() -> None:
    pair = Announcement(("A", "B"), settled=False)
    for again in (True, False):
        boot = node()
        boot.heard("B", Announcement(("A", "B"), settled=False, wall_ns=7200 * 10**9), wall_ns=10**9)
        if not again:
            boot.forget("B")
        boot.heard("B", pair, wall_ns=10**9)
        boot.decide(pair, PARTIAL_SECONDS)
        assert boot.decide(pair, PARTIAL_SECONDS + STABLE_SECONDS).verdict is Verdict.CREATE


def test_running_cluster_is_joined_never_recreated() -> None:
    boot = node("D", expected=4, A=settled(("A", "B", "C", "D"), meta=ABC))
    assert boot.decide(settled(("A", "D")), 1.0) == Decision(Verdict.JOIN, ABC, "X")


def test_member_that_missed_the_creation_adopts_it() -> None:
    boot = node("B", A=settled(meta=ABC))
    assert boot.decide(settled(("A", "B")), 1.0) == Decision(Verdict.ADOPT, ABC, "X")


@pytest.mark.parametrize("expected", [1, 3])
def test_nobody_ever_starts_alone(expected: int) -> None:
    boot = node(expected=expected)
    alone = settled(("A",))
    for now in (1.0, PARTIAL_SECONDS * 2, 1e6, 1e6 + STABLE_SECONDS * 2):
        assert boot.decide(alone, now).verdict is Verdict.WAIT


def test_a_seed_without_routes_starts_with_whoever_names_it() -> None:
    boot = node(expected=1, B=settled(("A", "B")))
    pair = settled(("A", "B"))
    boot.decide(pair, 1.0)
    assert boot.decide(pair, 1.0 + STABLE_SECONDS) == Decision(Verdict.CREATE, ("A", "B"))


def test_a_node_between_two_clusters_joins_neither() -> None:
    boot = node("D", A=settled(meta=ABC), E=settled(meta=("E", "F"), cluster="Y"))
    assert boot.decide(settled(("A", "D", "E")), 1.0).verdict is Verdict.WAIT
    assert "different clusters (X, Y)" in boot.complaint(settled(("A", "D", "E")), TELL_SECONDS)


def test_a_cluster_whose_id_is_not_known_yet_is_neither_joined_nor_recreated() -> None:
    boot = node("D", A=settled(("A", "D"), meta=ABC, cluster=""))
    for now in (1.0, 1e6, 2e6):
        assert boot.decide(settled(("A", "D")), now).verdict is Verdict.WAIT


def test_who_had_joined_a_cluster_creates_no_other_one() -> None:
    boot = node(B=settled(), C=settled())
    boot.member_of = "X"
    boot.decide(settled(), 1.0)
    assert boot.decide(settled(), 1.0 + STABLE_SECONDS).verdict is Verdict.WAIT


def test_a_node_that_waits_says_so_every_ten_seconds() -> None:
    boot = node(expected=1)
    alone = settled(("A",))
    told = [boot.complaint(alone, tenth / 10) for tenth in range(int(TELL_SECONDS * 35))]
    assert sum(map(bool, told)) == 3
    assert any("no configured route leads to one" in text for text in told)


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
    assert boot.decide(pair, 2.0 + STABLE_SECONDS) == Decision(Verdict.CREATE, ("A", "B"))
