"""A server's findings, and the cluster's from any server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster.refusals import Refusals
from jetcluster.doctor.facts import Absent
from jetcluster.errors import by_code
from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.model.limits import UNLIMITED
from jetcluster.monitor import findings as module
from jetcluster.monitor.findings import KEPT_SECONDS, Findings, serve_findings
from jetcluster.monitor.shared import part_of
from jetcluster.server.server import Server
from jetcluster.store.api import DamagedError
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime
from tests.unit.doctor.cases import server as facts_of
from tests.unit.monitor import fake_node
from tests.unit.monitor.system import Asker, services


class Mesh:
    """Two peers with answers, errors, or bytes that nobody sends."""

    def __init__(self, **answers: Any) -> None:
        self.peers = {name: SimpleNamespace(name=name) for name in answers}
        self._answers = answers

    async def call(self, peer: str, method: str, payload: bytes, timeout: float) -> bytes:
        assert method == "monitor.findings"
        answer = self._answers[peer]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def told(name: str, **changed: Any) -> dict[str, Any]:
    facts = replace(facts_of(name), version="0", **changed)
    return {"facts": facts.to_dict(), "report": {"findings": []}}


def findings(node: Any, mesh: Mesh | None = None) -> Findings:
    if mesh is not None:
        node.jetstream.mesh = mesh
    return Findings(node)


def codes(answer: dict[str, Any]) -> dict[str, str]:
    return {one["code"]: one["what"] for one in answer["findings"]}


async def test_a_server_and_its_streams(node: Any) -> None:
    engine = node.jetstream.jetstream
    engine.drift.votes.undecided = [7]
    engine.broken[9] = (SimpleNamespace(account="$G", name="B"), "its table is torn")
    engine.network.raft.losses = ["S"]
    answer = await findings(node).answer(cluster=False)
    found = codes(answer)
    assert answer["servers"] == ["n1"]
    assert found["JC309"] == "The replica of S on n1 may be wrong"
    assert found["JC311"] == "The replica of B on n1 cannot be started"
    assert found["JC119"] == "1 groups on n1 lost records of the journal"
    assert "JC101" not in found


async def test_an_absent_member_is_the_clusters(node: Any) -> None:
    del node.jetstream.jetstream.network.mesh.peers["CCCCCCCC"]
    mesh = Mesh(n2=told("n2", absent=(Absent("n3", 7.0),), linked=("n1",), meta_leader="n1"))
    refused = node.jetstream.jetstream.network.mesh.refused_members
    refused |= {"CCCCCCCC": ("authorization violation", node.clock.monotonic()), "BBBBBBBB": ("no", 0.0)}
    answer = await findings(node, mesh).answer(cluster=True)
    assert answer["servers"] == ["n1", "n2"]
    found = codes(answer)
    assert "is absent" in found["JC101"]
    (why,) = (one["why"] for one in answer["findings"] if one["code"] == "JC101")
    assert why.startswith("It seems to run: n1 refuses it at the cluster port (authorization violation). ")
    assert "JC302" in found, "S is without a replica"


async def test_a_stream_whose_servers_are_all_absent_is_told_by_nobody_else(node: Any) -> None:
    engine = node.jetstream.jetstream

    names = {peer: one.name for peer, one in engine.known.machine.nodes.items()} | {"DDDDDDDD": "n4"}
    streams = {"AWAY": ("CCCCCCCC",), "HALF": ("BBBBBBBB", "CCCCCCCC"), "TWO": ("DDDDDDDD", "CCCCCCCC")}
    engine.meta.machine = engine.known.machine = fake_node.placed(names, **streams)
    del engine.network.mesh.peers["CCCCCCCC"]

    async def orphans(**of_n2: Any) -> list[str]:
        found = await findings(node, Mesh(n2=told("n2", meta_leader="n1", **of_n2))).answer(cluster=True)
        return [one["what"] for one in found["findings"] if one["code"] == "JC301"]

    assert await orphans(linked=("n1",)) == [
        "AWAY has no leader: none of the servers of its replicas is there (n3)",
        "TWO has no leader: none of the servers of its replicas is there (n4, n3)",
    ]
    assert await orphans(linked=("n1", "n3")) == [], "somebody reaches n3"


async def test_a_stream_that_went_with_a_store_is_told_by_nobody_else(node: Any) -> None:
    engine = node.jetstream.jetstream
    names = {peer: one.name for peer, one in engine.known.machine.nodes.items()}
    engine.meta.machine = fake_node.placed(names, GONE=("former",), SHORT=("former", "BBBBBBBB"))
    found = codes(await findings(node, Mesh(n2=told("n2", linked=("n1",)))).answer(cluster=True))
    assert found["JC324"] == "GONE is on no server any more: it stores and delivers nothing"


async def test_a_server_of_a_version_without_findings_is_there(node: Any) -> None:
    found = codes(await findings(node, Mesh(
        BBBBBBBB=told("n2", linked=("n1", "n3"), meta_leader="n1"),
        CCCCCCCC=MeshRefusedError("monitor.findings: no such method"),
    )).answer(cluster=True))  # fmt: skip
    assert found["JC210"] == "CCCCCCCC is linked and does not tell its state: its version does not know how"


async def test_an_account_by_its_limits(node: Any) -> None:
    node.jetstream.capacity.own_limits = lambda account: replace(UNLIMITED, max_storage=100)

    async def used(account: str) -> tuple[int, int, int]:
        return 0, 95, 0

    node.jetstream.jetstream.used = used
    answer = await findings(node, Mesh()).answer(cluster=True)
    assert codes(answer)["JC509"] == "Account $G uses 95 B of max_file 100 B"


async def test_servers_that_do_not_answer_are_named(node: Any) -> None:
    mesh = Mesh(n2=MeshError("timed out"), n3=b"[]")
    answer = await findings(node, mesh).answer(cluster=True)
    assert answer["unanswered"] == ["n2", "n3"]
    said = [one["what"] for one in answer["findings"] if one["code"] == "JC210"]
    assert said == [
        "n2 is linked and does not tell its state: timed out",
        "n3 is linked and does not tell its state: its answer cannot be read",
    ]


async def test_what_one_server_tells_another_can_read(node: Any, server: Server) -> None:
    encoded = await findings(node).serve("peer", b"")
    other = fake_node.node(server, ManualTime(), fake_node.engine(ManualTime()))
    answer = await findings(other, Mesh(n2=encoded)).answer(cluster=True)
    assert answer["unanswered"] == []


async def test_damage_that_shows_while_it_is_looked_at_is_reported(node: Any) -> None:
    replica, seen = node.jetstream.jetstream.replicas[7], []
    replica.report_damage = seen.append

    def torn(**_: Any) -> dict[str, Any]:
        raise DamagedError(3, 3)

    replica.mirrors.links.info = torn
    await findings(node).answer(cluster=False)
    assert [str(error) for error in seen] == [str(DamagedError(3, 3))]


async def test_over_the_system_account(node: Any, server: Server) -> None:
    own = services(node)
    asker = Asker(server)
    try:
        node.jetstream.mesh = Mesh(n2=told("n2"))
        answer = await asker.ask("$SYS.REQ.SERVER.PING.FINDINGS", cluster=True)
        assert answer["data"]["servers"] == ["n1", "n2"]
        answer = await asker.ask(f"$SYS.REQ.SERVER.{server.server_id}.FINDINGS")
        assert answer["data"]["servers"] == ["n1"]
        assert await asker.silent("$SYS.REQ.SERVER.PING.FINDINGS", cluster="another")
    finally:
        await own.stop()


async def test_a_server_that_hangs_holds_up_no_other_request(
    node: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, asker, over = services(node), Asker(server), asyncio.Event()

    class Hung(Mesh):
        async def call(self, *_: Any) -> bytes:
            await over.wait()
            raise MeshError("timed out")

    try:
        node.jetstream.mesh = Hung(n2=b"")
        asker.bus.ask(b"$SYS.REQ.SERVER.PING.FINDINGS", b'{"cluster": true}', b"inbox")
        assert "id" in await asker.ask("$SYS.REQ.SERVER.PING.IDZ")
        over.set()
        assert (await asker.next())[1]["data"]["unanswered"] == ["n2"]
    finally:
        await own.stop()


async def test_a_stream_that_was_refused_here(node: Any) -> None:
    refusals = Refusals(node.clock, ListLog())  # type: ignore[arg-type]
    refusals.note("A", "S", "q", by_code(10047), ["6 GiB are asked for", "3 GiB are left"])
    node.jetstream.jetstream.refusals = refusals
    (found,) = (one for one in (await findings(node).answer(cluster=False))["findings"] if one["code"] == "JC321")
    assert found["what"] == "Stream S was refused 0 s ago: insufficient storage resources available (10047)"
    assert found["why"] == "6 GiB are asked for; 3 GiB are left"


async def test_several_askers_share_one_look(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr(module, "server_facts", lambda one: (looks.append(one.clock.monotonic()), facts_of("n1"))[1])
    node.jetstream.mesh, node.clock = Mesh(n2=told("n2")), ManualTime()
    shared = part_of(node, Findings)
    await asyncio.gather(*(shared.answer(cluster=place % 2 == 0) for place in range(8)), shared.serve("n2", b""))
    assert len(looks) == 1
    node.clock.advance(KEPT_SECONDS)
    await serve_findings(node, "n2", b"")
    assert len(looks) == 2
