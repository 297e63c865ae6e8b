"""A leaf link until both ends know each other; `test_leaf_link` has the whole of it."""

from __future__ import annotations

import pytest

from jetcluster.server.leaf.handshake import is_at_least
from tests.unit.server.leaf_rig import Site


@pytest.mark.parametrize(
    ("given", "least", "enough"),
    [
        ("2.14.5", "2.14.5", True),
        ("v2.14.5", "2.14.4", True),
        ("2.9.9", "2.10.0", False),
        ("2.14.5-beta.1", "2.14.5", True),
        ("", "2.0.0", False),
        ("nonsense", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(given: str, least: str, enough: bool) -> None:
    assert is_at_least(given, least) is enough


async def test_of_two_links_of_one_leaf_the_older_one_goes() -> None:
    site = Site()
    old, new = site.leaf(server_id="N"), site.leaf(server_id="N")
    assert old.link.close_reason == "Duplicate Remote LeafNode Connection" and not new.link.close_reason
    assert site.leafnodes.links == [new.link]
    new.link.close("Client Closed")
    assert site.leafnodes.links == []
