from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.meta.placement import Candidate, PlacementRules, place

THREE = [Candidate("n1"), Candidate("n2"), Candidate("n3")]


def refusal(replicas: int, candidates: list[Candidate], wish: dict[str, Any] | None = None) -> str:
    with pytest.raises(ApiError) as caught:
        place("S", replicas, candidates, wish, "C1")
    assert (caught.value.code, caught.value.err_code) == (400, 10005)
    return caught.value.description


def test_r3_takes_all_and_leads_from_one_of_them() -> None:
    chosen = place("S", 3, THREE)
    assert sorted(chosen.peers) == ["n1", "n2", "n3"]
    assert chosen.leader in chosen.peers


def test_the_least_loaded_and_the_online_come_first() -> None:
    nodes = [Candidate("busy", replicas=9), Candidate("off", online=False), Candidate("a", replicas=1), Candidate("b")]
    assert place("S", 1, nodes).peers == ("b",)
    assert set(place("S", 3, nodes).peers) == {"a", "b", "busy"}


def test_who_is_not_well_is_taken_after_the_others_and_leads_last() -> None:
    nodes = [Candidate("silent", well=False), *(Candidate(p, replicas=9, leaders=9) for p in ("a", "b"))]
    assert all(place(f"S{i}", 1, nodes).peers[0] in {"a", "b"} for i in range(20))
    chosen = place("S", 3, nodes)
    assert set(chosen.peers) == {"silent", "a", "b"}
    assert chosen.leader != "silent"
    assert place("S", 1, nodes[:1]).peers == ("silent",)


def test_the_leader_is_the_one_that_leads_least() -> None:
    nodes = [Candidate("n1", leaders=4), Candidate("n2", leaders=2), Candidate("n3", leaders=3)]
    assert place("S", 3, nodes).leader == "n2"


def test_an_offline_node_fills_up_while_a_majority_is_online() -> None:
    nodes = [Candidate("n1"), Candidate("n2"), Candidate("n3", online=False, leaders=-1)]
    chosen = place("S", 3, nodes)
    assert set(chosen.peers) == {"n1", "n2", "n3"}
    assert chosen.leader != "n3"


def test_equal_nodes_take_turns() -> None:
    hits = Counter(place(f"S{i}", 1, THREE).peers[0] for i in range(300))
    assert min(hits.values()) > 60, hits


@pytest.mark.parametrize(
    ("replicas", "candidates", "wish", "text"),
    [
        (5, THREE, None, "no suitable peers for placement"),
        (3, [Candidate("n1"), *(Candidate(p, online=False) for p in ("n2", "n3"))], None, ", peer offline"),
        (1, [Candidate("n1", online=False)], None, ", peer offline"),
        (1, THREE, {"tags": ["az:1"]}, ", tags not matched ['az:1']"),
        (1, [Candidate("n1", tags=("az:1",))], {"tags": ["!az:1"]}, ", tags excluded ['az:1']"),
        (1, THREE, {"cluster": "C2"}, ", jetstream not enabled in cluster"),
        (1, [Candidate("n1", jetstream=False)], None, "no suitable peers for placement"),
        (1, [Candidate("n1", tags=("!jetstream",))], None, "no suitable peers for placement"),
    ],
)
def test_refusals(replicas: int, candidates: list[Candidate], wish: dict[str, Any] | None, text: str) -> None:
    description = refusal(replicas, candidates, wish)
    assert description.startswith("no suitable peers for placement")
    assert description.endswith(text)


def test_tags_choose_without_case() -> None:
    nodes = [Candidate("n1", tags=("AZ:1",)), Candidate("n2", tags=("az:2", "ssd"))]
    assert place("S", 1, nodes, {"tags": ["az:1"]}, "C1").peers == ("n1",)
    assert place("S", 1, nodes, {"tags": ["!az:1", "SSD"], "cluster": "C1"}, "C1").peers == ("n2",)


# --- jetstream { unique_tag, limits { max_ha_assets } }

AZ = PlacementRules(unique_tag="az:")


def test_replicas_are_apart_by_their_unique_tag() -> None:
    nodes = [Candidate(f"n{i}", (f"AZ:{i // 2}", "ssd"), replicas=i) for i in range(6)]
    for name in ("A", "B", "C"):
        chosen = place(name, 3, nodes, rules=AZ).peers
        assert {peer[1:] for peer in chosen} == {"0", "2", "4"}, "the least loaded one of each zone"


def test_there_are_not_enough_zones() -> None:
    nodes = [Candidate("n1", ("az:1",)), Candidate("n2", ("az:2",)), Candidate("n3", ("az:2",))]
    with pytest.raises(ApiError, match="server tag not unique"):
        place("S", 3, nodes, rules=AZ)
    assert len(place("S", 2, nodes, rules=AZ).peers) == 2


def test_a_node_without_the_tag_holds_nothing() -> None:
    with pytest.raises(ApiError, match="server tag not unique"):
        place("S", 1, [Candidate("n1", ("ssd",))], rules=AZ)
    assert place("S", 1, [Candidate("n1"), Candidate("n2", ("az:1",))], rules=AZ).peers == ("n2",)


def test_a_placement_that_names_such_a_tag_is_free_of_it() -> None:
    nodes = [Candidate(f"n{i}", ("az:1",)) for i in range(3)]
    assert len(place("S", 3, nodes, {"tags": ["az:1"]}, rules=AZ).peers) == 3
    with pytest.raises(ApiError, match="server tag not unique"):
        place("S", 3, nodes, {"tags": []}, rules=AZ)


def test_what_holds_a_replica_already_counts() -> None:
    nodes = [Candidate("n2", ("az:1",)), Candidate("n3", ("az:2",), replicas=9)]
    assert place("S", 1, nodes, rules=AZ, beside=[Candidate("n1", ("az:1",))]).peers == ("n3",)


def test_an_offline_zone_does_not_make_a_majority() -> None:
    nodes = [Candidate("n1", ("az:1",)), *(Candidate(f"n{i}", (f"az:{i}",), online=False) for i in (2, 3))]
    with pytest.raises(ApiError, match="no suitable peers"):
        place("S", 3, nodes, rules=AZ)


def test_a_node_without_room_for_what_is_reserved_gets_no_replica() -> None:
    nodes = [Candidate("n1", room=10), Candidate("n2", room=9), Candidate("n3", room=30), Candidate("n4")]
    assert set(place("S", 3, nodes, claim=10).peers) == {"n1", "n3", "n4"}
    assert place("S", 1, nodes, claim=31).peers == ("n4",)
    with pytest.raises(ApiError) as refused:
        place("S", 3, nodes, claim=11)
    assert refused.value.err_code == 10005
    assert refused.value.description == "no suitable peers for placement, insufficient storage"
    assert len(place("S", 4, nodes).peers) == 4, "nothing is reserved"


def test_a_node_that_is_full_gets_no_more_replicated_streams() -> None:
    nodes = [Candidate("n1"), Candidate("n2"), Candidate("n3", full=True)]
    with pytest.raises(ApiError, match="maximum number of HA assets reached"):
        place("S", 3, nodes)
    assert set(place("S", 2, nodes).peers) == {"n1", "n2"}
    assert place("S", 1, [nodes[2]]).peers == ("n3",)
    with pytest.raises(ApiError, match="maximum number of HA assets reached"):
        place("S", 1, [nodes[2]], beside=[nodes[0]])


def workers(machines: int, each: int) -> list[Candidate]:
    return [Candidate(f"m{m}w{w}", (f"machine:m{m}", f"worker:{w}")) for m in range(machines) for w in range(each)]


def test_no_two_replicas_are_on_one_machine() -> None:
    for number in range(50):
        chosen = place(f"S{number}", 3, workers(3, 4)).peers
        assert sorted(peer[:2] for peer in chosen) == ["m0", "m1", "m2"]


def test_one_machine_is_not_enough_for_two_replicas() -> None:
    assert place("S", 1, workers(1, 4)).peers
    assert refusal(2, workers(1, 4)) == "no suitable peers for placement, server tag not unique"


def test_a_further_replica_is_on_another_machine_than_those_beside_it() -> None:
    first, *others = workers(2, 2)
    assert place("S", 1, others, beside=[first]).peers[0].startswith("m1")


def test_workers_are_apart_by_machine_and_by_the_configured_tag() -> None:
    nodes = [Candidate(c.peer, (*c.tags, f"rack:{int(c.peer[1]) % 3}")) for c in workers(6, 2)]
    for number in range(50):
        chosen = place(f"S{number}", 3, nodes, rules=PlacementRules("rack:")).peers
        assert {int(peer[1]) % 3 for peer in chosen} == {0, 1, 2}


def test_nodes_with_a_tag_of_their_own_that_looks_like_a_machines_are_apart_anyway() -> None:
    nodes = [Candidate(peer, ("machine:big",)) for peer in ("a", "b", "c")]
    assert len(place("S", 3, nodes).peers) == 3
