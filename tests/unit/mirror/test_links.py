"""The links of a stream to its upstreams."""

from __future__ import annotations

from jetcluster.stream.rules import link_key
from tests.unit.mirror.rig import begun


def test_sources_come_and_go() -> None:
    rig = begun(sources=[{"name": "A"}, {"name": "B"}])
    first = rig.links.by_key[link_key({"name": "A"})]
    assert [entry["name"] for entry in rig.links.info()["sources"]] == ["A", "B"]
    rig.configure(sources=[{"name": "C"}, {"name": "A"}])
    rig.links.configure()
    assert [entry["name"] for entry in rig.links.info()["sources"]] == ["C", "A"]
    assert rig.links.by_key[link_key({"name": "A"})] is first
    rig.configure()
    rig.links.configure()
    assert rig.links.info() == {}
    assert not rig.bus.subscriptions
