"""Statistics that a server tells of itself."""

from __future__ import annotations

from jetcluster.monitor.system_events import SystemEvents
from jetcluster.server.server import Server
from tests.unit.monitor.system import Asker


async def test_statistics_beat(server: Server, events: SystemEvents) -> None:
    system = Asker(server)
    system.listen(b"$SYS.SERVER.*.STATSZ")
    first, second = [await system.next(), await system.next()]
    assert first[0] == f"$SYS.SERVER.{server.server_id}.STATSZ"
    assert set(first[1]) == {"server", "statsz"}
    assert second[1]["server"]["seq"] > first[1]["server"]["seq"]
