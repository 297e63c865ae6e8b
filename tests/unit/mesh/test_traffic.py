"""Traffic of links, by account."""

from __future__ import annotations

import pytest

from jetcluster.mesh import traffic
from jetcluster.mesh.traffic import RouteTraffic, Traffic


def test_both_ways_are_counted_by_account() -> None:
    routes = RouteTraffic()
    routes.sent("A", 5)
    routes.sent_many("A", [(b"subject", b"reply", b"hh", b"ppp"), (b"s", b"", b"", b"p")])
    routes.received("A", 3, 40)
    routes.received("B", 1, 2)
    assert routes.by_account == {"A": Traffic(3, 40, 3, 11), "B": Traffic(1, 2)}


def test_names_that_peers_make_up_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_ACCOUNTS", 2)
    routes = RouteTraffic()
    for name in ("A", "B", "C"):
        routes.received(name, 1, 1)
    routes.sent("A", 1)
    routes.sent("C", 1)
    assert list(routes.by_account) == ["A", "B"]
    assert routes["A"].out_msgs == 1 and routes["C"] == Traffic()
