"""Promises that servers made to each other are compared with the state they restart with."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.mesh.frames import encode_call, encode_reply
from jetcluster.raft.codec import VoteReply, encode, encode_ack
from testkit.raft_frames import encode_raft
from testkit.sim import starts
from testkit.sim.deployment import Deployment
from testkit.sim.layout import ROUTE_PORT
from testkit.sim.machine import DATA, JOURNAL, Machine
from testkit.sim.rafts import raft_of
from testkit.sim.session import Session
from testkit.sim.vows import Vow, Vows

pytestmark = pytest.mark.sim

GROUP = 7
N1, N2, N3 = (("10.0.0.1", 40_000), ("10.0.0.2", ROUTE_PORT), ("10.0.0.3", ROUTE_PORT))


def test_vows_are_overheard_and_kept_over_losses_of_power(deployment: Deployment) -> None:
    vows = deployment.vows
    machine = deployment.machines[next(iter(vows.vows))[0]]
    machine.lose_power()
    machine.start()
    deployment.run(8.0)
    assert vows.kept > 0
    assert not deployment.failures


@pytest.mark.parametrize(
    "told",
    [
        lambda vow, log: Vow(log.term, log.last_index + 1000),
        lambda vow, log: Vow(log.term + 1000, 0),
        lambda vow, log: Vow(0, 0, log.term + 1000, "another"),
        lambda vow, log: Vow(0, 0, log.term, "another"),
    ],
    ids=["stored", "a term", "a later vote", "another vote"],
)
def test_a_vow_that_a_server_forgot_is_noticed(deployment: Deployment, told: Any) -> None:
    machine, vows = deployment.machines["n1"], deployment.vows
    node: Any = machine.node
    (gid, log), *_ = node.jetstream._raft.journal.groups.items()
    machine.lose_power()
    vows.vows["n1", gid] = told(Vow(), log)
    machine.start()
    deployment.run(8.0)
    assert deployment.failures
    assert f"n1, group {gid}" in deployment.failures[0]


def test_damage_elsewhere_on_its_disk_excuses_no_server(deployment: Deployment) -> None:
    machine, vows = deployment.machines["n1"], deployment.vows
    key = next(key for key in vows.vows if key[0] == "n1")
    machine.lose_power()
    path, file = next(one for one in machine.disk.tree(DATA) if one[1].sectors)
    machine.disk.rot(path, file.size)
    vows.vows[key] = vows.vows[key]._replace(vote_term=1000, vote="another")
    machine.start()
    deployment.run(8.0)
    assert "and acknowledged" in deployment.failures[0]


@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_journal_is_an_excuse_where_something_was_done_to_it(deployment: Deployment, known: bool) -> None:
    machine = deployment.machines["n1"]
    machine.lose_power()
    for path, file in machine.disk.tree(JOURNAL):
        if file.sectors:
            machine.disk.rot(path, 100, 200)
    if not known:
        machine.disk.incidents.clear()
    machine.start()
    deployment.run(8.0)
    told = [text for text in deployment.failures if "damaged journal, and nothing has happened" in text]
    assert bool(told) is not known


@pytest.mark.parametrize("left", [True, False])
def test_a_data_store_that_went_back_excuses_whose_replica_had_left(deployment: Deployment, left: bool) -> None:
    """The last flush is lost, and with it the removal: a state is there again, and rightly no log of it."""
    machine, gid = _shrunk_away(deployment)
    machine.lose_power()
    (manifest, file), *_ = [one for one in machine.disk.tree(DATA) if "MANIFEST" in one[0]]
    machine.disk.cut(manifest, file.size - 1)
    if not left:
        deployment.vows.left.clear()
    machine.start()
    deployment.run(8.0)
    assert bool(deployment.failures) is not left
    assert left or f"{machine.name}, group {gid}: starts with a damaged journal" in deployment.failures[0]


def test_damage_of_its_data_store_excuses_no_damaged_journal_of_a_member(deployment: Deployment) -> None:
    machine = deployment.machines["n1"]
    machine.lose_power()
    for path, file in machine.disk.tree(JOURNAL):
        if file.sectors:
            machine.disk.rot(path, 100, 200)
    machine.disk.incidents.clear()
    path, file = next(one for one in machine.disk.tree(DATA) if one[1].sectors)
    machine.disk.rot(path, file.size)
    machine.start()
    deployment.run(8.0)
    assert [text for text in deployment.failures if "damaged journal, and nothing has happened" in text]


def _shrunk_away(deployment: Deployment) -> tuple[Machine, int]:
    """Makes a stream of three, and then of one replica; ends once the removal is on the disk of one that leaves it."""
    loop = deployment.client("me")

    async def shrink() -> None:
        session = Session("s", deployment.addresses(*deployment.machines))
        await session.connect(5.0)
        await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 3})
        await session.js_publish("s.x", b"one", {}, seconds=2.0)
        await asyncio.sleep(35.0)  # each has flushed its state
        await session.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 1})
        await session.close()

    journals: list[tuple[Machine, Any]] = [
        (machine, raft.journal) for machine in deployment.machines.values() if (raft := raft_of(machine)) is not None
    ]
    deployment.run_until_done(deployment.spawn(loop, shrink()), 60.0)
    deployment.vows.look()
    gid = max(gid for _, journal in journals for gid in journal.groups)
    for _ in range(6_000):
        left = [machine for machine, journal in journals if gid not in journal.groups]
        deployment.run(0.01)
        if left:
            deployment.run(0.5)  # the journal is synced, and the data store not flushed again
            return left[0], gid
    raise AssertionError("nobody has left the stream")


def test_what_was_committed_and_counted_is_there(deployment: Deployment) -> None:
    machine, vows = deployment.machines["n1"], deployment.vows
    machine.kill()
    assert any(name == "n1" and claim > 0 for (name, _), claim in vows.claims.items())
    for key in vows.claims:
        vows.claims[key] += 1000
    machine.start()
    deployment.run(8.0)
    assert "which are committed" in deployment.failures[0]


def test_another_disk_has_promised_nothing(deployment: Deployment) -> None:
    machine, vows = deployment.machines["n1"], deployment.vows
    machine.lose_power()
    machine.new_disk()
    assert not [key for key in (*vows.vows, *vows.claims) if key[0] == "n1"]


@pytest.mark.parametrize(
    ("base", "last", "what"),
    [(0, 0, ""), (7, 0, "its journal begins behind"), (0, -1, "its journal ended at")],
    ids=["they meet", "the journal forgot", "the store is ahead"],
)
def test_a_journal_and_a_store_that_do_not_meet_are_noticed(
    deployment: Deployment, base: int, last: int, what: str
) -> None:
    machine = deployment.machines["n1"]
    raft = raft_of(machine)
    gid, group = next(iter(raft.groups.items()))
    flags = {"durable": True, "damaged": False, "joining": False, "fetching": False}
    log = SimpleNamespace(
        base_index=group.applied_index + base, last_index=group.log.base_index + last, term=0, **flags
    )
    if not base:
        log.base_index = 0
    found: list[str] = []
    starts.watch(deployment, machine, {gid: log}, lambda key, said: found.append(said))
    assert [what in said for said in found] == ([True] if what else [])
    log.damaged = True
    starts.watch(deployment, machine, {gid: log}, lambda key, said: found.append(said))
    assert len(found) == bool(what), "a log that calls itself damaged excuses it"
    log.damaged = False
    deployment.victims["n1"] = None  # as of many faults that damage nothing in the end
    starts.watch(deployment, machine, {gid: log}, lambda key, said: found.append(said))
    assert len(found) == 2 * bool(what)
    machine.damaged_data = True
    starts.watch(deployment, machine, {gid: log}, lambda key, said: found.append(said))
    assert len(found) == 2 * bool(what), "its store may have been damaged, and renewed"


def test_a_replica_that_starts_and_forgets_what_it_may_have_promised_is_noticed(deployment: Deployment) -> None:
    machine = deployment.machines["n1"]
    gid, group = next(iter(raft_of(machine).groups.items()))
    found: list[str] = []

    def begin(until: float, leader: str | None) -> int:
        vars(group.promise).update(_until=until)
        group.engine.leader = leader
        starts.watch(deployment, machine, {gid: group.log}, lambda key, said: found.append(said))
        return len(found)

    assert begin(math.inf, None) == 0
    assert begin(-math.inf, "n2") == 0, "its leader may have released it"
    assert begin(-math.inf, None) == 1
    assert "has forgotten" in found[0]


def test_frames_are_read_as_the_mesh_writes_them() -> None:
    peers = {name: SimpleNamespace(node=_node(name)) for name in ("n1", "n2", "n3")}
    deployment: Any = SimpleNamespace(
        names={ip: name for (ip, _), name in zip((N1, N2, N3), peers, strict=True)},
        machines=peers,
        scheduler=SimpleNamespace(now=1.0),
        failures=[],
    )
    deployment.failed = deployment.failures.append
    vows = Vows(deployment)
    frames = [encode_ack(3, 10, 0, False), encode_ack(3, 8, 0, False), encode(VoteReply(4, False))]
    vows.overhear(N1, N2, b"".join(encode_raft(GROUP, frame) for frame in frames))
    assert vows.vows == {("n1", GROUP): Vow(3, 10)}
    vows.overhear(N1, N2, encode_raft(GROUP, encode(VoteReply(4, True))))
    assert vows.vows["n1", GROUP] == Vow(3, 10, 4, "id of n2")
    assert not deployment.failures
    vows.overhear(N1, N3, encode_raft(GROUP, encode(VoteReply(4, True))))
    assert "voted for id of n2" in deployment.failures[0]
    vows.overhear(N1, N2, encode_raft(GROUP, encode_ack(5, 0, 0, True)))
    assert vows.vows["n1", GROUP] == Vow()


def _node(name: str) -> Any:
    me = SimpleNamespace(peer_id=f"id of {name}")
    return SimpleNamespace(jetstream=SimpleNamespace(mesh=SimpleNamespace(me=me), _raft=None))


def test_a_request_under_the_number_of_one_without_an_answer_is_noticed() -> None:
    failures: list[str] = []
    names = {"10.0.0.1": "n1", "10.0.0.2": "n2"}
    deployment: Any = SimpleNamespace(names=names, failed=failures.append, scheduler=SimpleNamespace(now=1.0))
    vows = Vows(deployment)
    vows.overhear(N1, N2, encode_call(3, b"ask", b"") + encode_call(4, b"ask", b""))
    vows.overhear(N2, N1, encode_reply(3, b""))
    vows.overhear(N1, N2, encode_call(3, b"ask", b""))
    vows.nonsense.add(wrong := encode_call(4, b"\xff", b""))  # what a fault has it say
    vows.overhear(N1, N2, wrong)
    assert not failures
    vows.overhear(N1, N2, encode_call(4, b"ask", b""))
    assert "n1 asks n2 under the number 4" in failures[0]


def test_what_strangers_say_is_no_vow(deployment: Deployment) -> None:
    """Garbage may look like a frame."""
    vows, stranger = deployment.vows, ("10.0.1.3", 40_000)
    vows.overhear(stranger, N2, encode_raft(GROUP, encode(VoteReply(4, True))))
    vows.overhear(N2, stranger, encode_raft(GROUP, encode_ack(5, 0, 0, True)))
    assert not [key for key in vows.vows if key[1] == GROUP]
    assert not deployment.failures
