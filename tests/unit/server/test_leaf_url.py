"""URLs of hubs."""

from __future__ import annotations

import pytest

from jetcluster.server.leaf_url import host_of, place, wants_tls


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("nats-leaf://u:p@hub:7000", ("u", "p", "hub", 7000)),
        ("tls://hub", ("", "", "hub", 7422)),
        ("hub", ("", "", "hub", 7422)),
        ("nats://t0ken@hub/", ("t0ken", "", "hub", 7422)),
    ],
)
def test_parts(url: str, parts: tuple[str, str, str, int]) -> None:
    assert place(url) == parts
    assert host_of(url) == "hub"
    assert wants_tls(url) == url.startswith("tls")
