from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from jetcluster.cluster.placement import Candidate, place
from jetcluster.errors import ApiError

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
