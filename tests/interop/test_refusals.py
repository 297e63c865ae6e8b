"""The table of attempts that must fail (tests/unit/server/test_refusals.py) at nats-server: the same answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.server.test_refusals import OK, ROWS, STRICTER, outcomes

from .oracle import theirs

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("closed_wires")]


async def test_the_table_is_nats_servers(tmp_path: Path) -> None:
    found = await outcomes(tmp_path / "server.conf", theirs, tries=30)
    for what in STRICTER:
        assert found.pop(what) == (OK, OK)
    assert found == {what: (expected, OK) for what, _, _, expected, _ in ROWS if what not in STRICTER}
