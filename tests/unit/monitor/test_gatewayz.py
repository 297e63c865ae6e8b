"""/gatewayz: there are none."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.monitor.node_source import NodeSource
from jetcluster.monitor.source import QueryError


async def test_gatewayz(node: Any) -> None:
    found = NodeSource(node).page("gatewayz", {})
    assert (found["outbound_gateways"], found["inbound_gateways"]) == ({}, {})
    with pytest.raises(QueryError):
        NodeSource(node).page("gatewayz", {"accs": "x"})
