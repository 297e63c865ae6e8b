"""A data store that is made anew beside a whole journal: its server founds nothing that it has left."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from jetcluster.raft.api import Role
from testkit.sim.link import Link
from testkit.sim.session import ApiError, Disconnected, NoResponders, Session
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.run import started

pytestmark = pytest.mark.sim


class Rig:
    """Five servers, and a client."""

    def __init__(self) -> None:
        self.deployment = started("five")
        self.loop = self.deployment.client("me")

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = self.deployment.spawn(self.loop, work)
        self.deployment.run_until_done(task, 60.0)
        return task.result()

    async def session(self, *servers: str) -> Session:
        session = Session("s" + "".join(servers), self.deployment.addresses(*servers))
        await session.connect(5.0)
        return session

    async def publish(self, session: Session, *texts: str) -> list[int]:
        """The sequences of those that were acknowledged."""
        found = []
        for text in texts:
            try:
                found.append((await session.js_publish("s.x", text.encode(), {}, seconds=2.0))["seq"])
            except (ApiError, Disconnected, NoResponders, TimeoutError):
                continue
        return found

    def cut(self, name: str) -> None:
        """Off from all other servers."""
        for link in self._links([name], list(self.deployment.machines)):
            link.cut()

    def heal(self, *names: str) -> None:
        """The links between these."""
        for link in self._links(list(names), list(names)):
            link.heal()

    def _links(self, here: list[str], there: list[str]) -> list[Link]:
        ip = {name: machine.host.ip for name, machine in self.deployment.machines.items()}
        ends = {(a, b) for one in here for other in there if one != other for a, b in ((one, other), (other, one))}
        return [self.deployment.network.link(ip[a], ip[b]) for a, b in sorted(ends)]

    def leaders(self) -> list[str]:
        """The machines that lead the stream."""
        found = (one for one in replicas(self.deployment) if one.stream is not None)
        return [one.machine.name for one in found if one.group.role is Role.LEADER]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.deployment.close()


def test_two_majorities_do_not_come_of_one_damaged_store_and_a_partition(rig: Rig) -> None:
    """The stream is on a, b and c. While b is cut off it moves from c to another server. Then c's data store is damaged
    (its journal is whole), and it comes back to where b is."""
    deployment = rig.deployment
    session = rig.do(rig.session(*deployment.machines))
    rig.do(session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 3}))
    assert rig.do(rig.publish(session, "before")) == [1]
    cluster = rig.do(session.api("STREAM.INFO.S"))["cluster"]
    a, (b, c) = cluster["leader"], [replica["name"] for replica in cluster["replicas"]]
    rig.do(session.close())
    machines = deployment.machines
    rig.cut(b)
    deployment.run(3.0)
    session = rig.do(rig.session(a))
    rig.do(session.api("STREAM.PEER.REMOVE.S", {"peer": c}))
    deployment.run(100.0)
    assert c not in [one.machine.name for one in replicas(deployment) if one.stream is not None], "it has moved away"

    machines[c].kill()
    (manifest,) = [path for path, _ in machines[c].disk.tree() if "/data/MANIFEST" in path]
    machines[c].disk.rot(manifest, 20, 64)
    rig.cut(c)
    machines[c].start()
    rig.heal(b, c)
    deployment.run(8.0)
    other = rig.do(rig.session(b))
    acked = [rig.do(rig.publish(session, "A1", "A2")), rig.do(rig.publish(other, "B1", "B2"))]
    assert acked == [[2, 3], []]
    assert rig.leaders() == [a]

    rig.heal(*machines)
    deployment.run(60.0)
    assert rig.leaders() == [a]
    found = [one for one in replicas(deployment) if one.stream is not None]
    assert len(found) == 3 and c not in [one.machine.name for one in found]
    assert {one.stream.store.last_seq for one in found if one.stream is not None} == {3}
    assert len({frozenset(one.group.peers) for one in found}) == 1
