from __future__ import annotations

from typing import Any

import pytest

from jetcluster.cluster.stepdown import successors
from jetcluster.errors import ApiError
from jetcluster.meta.state import Node

NODES = {peer: Node(peer, peer.upper(), (f"t{peer}", "all")) for peer in ("a", "b", "c", "d")}


@pytest.mark.parametrize(
    ("placement", "allowed"),
    [
        ({}, ["b", "c"]),
        ({"cluster": "C"}, ["b", "c"]),
        ({"tags": ["all"]}, ["b", "c"]),
        ({"tags": ["TC"]}, ["c"]),
        ({"tags": ["all", "!tb"]}, ["c"]),
        ({"preferred": "B"}, ["b"]),
        ({"preferred": "B", "tags": ["tc"], "cluster": "X"}, ["b"]),
        ({"preferred": "NOPE"}, 'preferred server "NOPE" not known'),
        ({"preferred": "D"}, 'preferred server "D" not known'),
        ({"preferred": "A"}, 'preferred server "A" is already leader'),
        ({"tags": ["ta"]}, "no replacement peer connected"),
        ({"tags": ["td"]}, "no replacement peer connected"),
        ({"cluster": "X"}, "no replacement peer connected"),
    ],
)
def test_who_may_lead_next(placement: dict[str, Any], allowed: list[str] | str) -> None:
    def found() -> list[str]:
        return successors(("a", "b", "c"), "a", NODES, placement, "C")

    if isinstance(allowed, list):
        assert found() == allowed
    else:
        with pytest.raises(ApiError) as caught:
            found()
        assert (caught.value.code, caught.value.err_code, caught.value.description) == (400, 10005, allowed)
