"""Requests to a group's leader across leader changes (cluster/requests.py).

No answer that refuses is followed by the deed (`cluster.requests`): every request of the API that changes something,
asked while those that would carry it out are away, or stand still; then they are back.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.api import dispatch, endpoints
from jetcluster.api.dispatch import JetStreamApi
from jetcluster.api.request import ApiContext
from jetcluster.cluster.requests import (
    DEADLINE_SECONDS,
    LAST_ANSWER_SECONDS,
    MARGIN_SECONDS,
    REPEATED,
    GivenUpError,
    LeaderRequests,
    asked_until,
    check_wanted,
    left_for,
    wait_until,
)
from jetcluster.errors import ApiError, by_code
from jetcluster.raft.api import (
    BackpressureError,
    EntryTooLargeError,
    MembershipError,
    NotLeaderError,
    StorageFullError,
)
from jetcluster.replica.leaders import LeaderTable
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.store.kv import KvFullError
from testkit.sim.nodes import ACCOUNT, Cluster, Node
from testkit.sim.shared import MeshNetwork, SimMesh, VirtualLoop, virtual_time
from testkit.twins.log import ListLog
from testkit.twins.time import SeededRng

GID = 7


class AheadClock:
    """A wall clock that is ahead of the others, by seconds."""

    def __init__(self, loop: VirtualLoop, ahead: float) -> None:
        self._loop = loop
        self._ahead = int(ahead * 1e9)
        self.monotonic = loop.monotonic

    def time_ns(self) -> int:
        return self._loop.time_ns() + self._ahead


class Side:
    def __init__(self, network: MeshNetwork, loop: VirtualLoop, name: str, ahead: float = 0.0) -> None:
        self.mesh: SimMesh = network.mesh(name, name * 8)
        self.leaders = LeaderTable(self.mesh, lambda gid: None, lambda gid, term: None)
        self.log = ListLog()
        self.raises: list[Exception] = []
        """One for each of the next requests; then they are answered."""
        self.asked = 0
        self.hangs = False
        clock = AheadClock(loop, ahead)
        self.requests = LeaderRequests("test", self.mesh, self.leaders, clock, self._handle, self.log)
        self.mesh.start_now()

    async def _handle(self, gid: int, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(3600 if self.hangs else 0.01)
        if self.raises:
            raise self.raises.pop(0)
        return {"by": self.mesh.me.name, "gid": gid, "kind": kind, **body}


async def pair(ahead: float = 0.0) -> tuple[MeshNetwork, Side, Side]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network = MeshNetwork(loop)
    sides = Side(network, loop, "A", ahead), Side(network, loop, "B")
    await asyncio.sleep(0.01)
    return network, *sides


async def led_pair() -> tuple[Side, Side]:
    """The first of the two leads the group, and both know."""
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    return a, b


@virtual_time
async def test_the_leader_answers_here_or_there() -> None:
    a, b = await led_pair()
    for side in (a, b):
        assert await side.requests.ask(GID, "k", {"x": 1}) == {"by": "A", "gid": GID, "kind": "k", "x": 1}


@virtual_time
async def test_an_election_is_waited_for() -> None:
    _, a, b = await pair()
    loop = asyncio.get_running_loop()
    loop.call_later(2.0, b.leaders.lead, GID, 1)
    before = loop.time()
    assert (await a.requests.ask(GID, "k", {}))["by"] == "B"
    assert 2.0 <= loop.time() - before < 2.1


@virtual_time
async def test_whoever_does_not_lead_any_more_is_not_asked_twice_and_the_new_leader_answers() -> None:
    a, b = await led_pair()
    a.raises = [NotLeaderError(None)]
    asyncio.get_running_loop().call_later(0.5, b.leaders.lead, GID, 2)
    a.leaders.follow(GID, 2, None)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "B"
    assert (a.asked, b.asked) == (1, 1)


@virtual_time
@pytest.mark.parametrize("error", [OutcomeUnknownError("?"), BackpressureError("much"), NotLeaderError("x")])
async def test_trouble_that_passes_is_repeated(error: Exception) -> None:
    a, b = await led_pair()
    a.raises = [error]
    asyncio.get_running_loop().call_later(0.1, a.leaders.lead, GID, 1)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert a.asked == 2


@virtual_time
@pytest.mark.parametrize("error", [OutcomeUnknownError("?"), BackpressureError("much"), NotLeaderError("x")])
async def test_a_leader_that_was_in_trouble_and_says_nothing_of_itself_is_found_again(error: Exception) -> None:
    """A leader announces itself when it is elected, and not again because one request met it at a bad moment."""
    a, b = await led_pair()
    a.raises = [error]
    before = asyncio.get_running_loop().time()
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert a.asked == 2 and asyncio.get_running_loop().time() - before < 0.2


@virtual_time
async def test_a_link_that_breaks_under_way_is_no_answer() -> None:
    network, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    loop.call_later(0.005, network.cut, a.mesh.me.peer_id, b.mesh.me.peer_id)
    loop.call_later(1.0, network.heal, a.mesh.me.peer_id, b.mesh.me.peer_id)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert a.asked == 2


@virtual_time
async def test_refusals_end_the_asking() -> None:
    a, b = await led_pair()
    for raised, err_code in ((by_code(10059), 10059), (StorageFullError("full"), 10047), (KvFullError("full"), 10047)):
        a.raises = [raised]
        with pytest.raises(ApiError) as refused:
            await b.requests.ask(GID, "k", {})
        assert refused.value.err_code == err_code


@virtual_time
async def test_a_defect_is_answered_at_once_and_logged_once() -> None:
    a, b = await led_pair()
    a.raises = [KeyError("oops"), KeyError("oops")]
    with pytest.raises(ApiError) as refused:
        await b.requests.ask(GID, "k", {})
    assert refused.value.code == 500 and a.asked == 1 and len(a.log.events("error")) == 1


@virtual_time
async def test_nobody_leads() -> None:
    _, a, _ = await pair()
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(ApiError) as refused:
        await a.requests.ask(GID, "k", {})
    assert (refused.value.code, refused.value.err_code) == (503, 10008)
    assert DEADLINE_SECONDS <= loop.time() - before < DEADLINE_SECONDS + 0.5


@virtual_time
async def test_a_repetition_says_so_only_when_the_first_may_have_been_carried_out() -> None:
    _, a, _ = await pair()
    a.leaders.lead(GID, 1)
    a.raises = [BackpressureError("full")]
    assert REPEATED not in await a.requests.ask(GID, "k", {})
    a.leaders.lead(GID, 1)
    a.raises = [OutcomeUnknownError("leadership lost")]
    assert (await a.requests.ask(GID, "k", {}))[REPEATED] is True


@virtual_time
async def test_a_leader_that_hangs_is_not_waited_for_once_another_one_leads() -> None:
    a, b = await led_pair()
    a.hangs = True
    loop = asyncio.get_running_loop()
    loop.call_later(1.0, b.leaders.lead, GID, 2)
    before = loop.time()
    answer = await b.requests.ask(GID, "k", {})
    assert answer["by"] == "B" and answer[REPEATED] is True, "the one that hung may have carried it out"
    assert 1.0 <= loop.time() - before <= 1.0 + LAST_ANSWER_SECONDS + 0.1


@virtual_time
async def test_the_answer_of_a_leader_that_hands_over_meanwhile_counts() -> None:
    a, b = await led_pair()
    asyncio.get_running_loop().call_later(0.005, b.leaders.lead, GID, 2)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert (a.asked, b.asked) == (1, 0)


@virtual_time
async def test_what_no_leader_could_take_is_refused_at_once() -> None:
    a, b = await led_pair()
    for final in (EntryTooLargeError(), MembershipError("no member")):
        a.raises = [final]
        before = asyncio.get_running_loop().time()
        with pytest.raises(ApiError) as refused:
            await b.requests.ask(GID, "k", {})
        assert not refused.value.retriable and str(final) in refused.value.description
        assert asyncio.get_running_loop().time() - before < 0.1


@virtual_time
@pytest.mark.parametrize("ahead", [0.0, 4.0, -4.0])
async def test_clocks_that_differ_keep_nobody_from_being_answered(ahead: float) -> None:
    _, a, b = await pair(ahead)
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert a.asked == 1


@virtual_time
@pytest.mark.parametrize("ahead", [0.0, 4.0, -4.0])
@pytest.mark.parametrize("waits", [2.0, 30.0])
async def test_a_question_that_comes_late_is_answered_if_somebody_waits_still(ahead: float, waits: float) -> None:
    network, a, b = await pair(ahead)
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    network.hold(a.mesh.me.peer_id)
    asyncio.get_running_loop().call_later(waits, network.release)
    asking = asyncio.ensure_future(b.requests.ask(GID, "k", {}))
    await asyncio.sleep(waits + 1.0)
    assert a.asked == (waits < DEADLINE_SECONDS)
    if waits < DEADLINE_SECONDS:
        assert (await asking)["by"] == "A"
    else:
        with pytest.raises(ApiError):
            await asking


@virtual_time
async def test_a_request_that_asks_twice_is_given_up_as_a_whole() -> None:
    _, a, _ = await pair()
    loop = asyncio.get_running_loop()
    before = loop.time()
    wait_until(before + 2.0)
    with pytest.raises(ApiError):
        await a.requests.ask(GID, "k", {})
    assert 1.7 < loop.time() - before < 2.0


READING = {
    "INFO",
    "ACCOUNT.INFO",
    "STREAM.INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.MSG.GET",
    "STREAM.SNAPSHOT",
    "CONSUMER.INFO",
    "CONSUMER.NAMES",
    "CONSUMER.LIST",
}
STREAM = {"name": "S", "subjects": ["s"], "num_replicas": 1, "allow_direct": True}
PULL = {"ack_policy": "explicit"}


def requests(stream: dict[str, Any], victim: str) -> list[tuple[str, str, Any]]:
    """(endpoint, rest of the subject, body) for a stream S with messages and a consumer C, and a bucket b with an
    object o. `victim` is a server that has S."""
    changed = {**stream, "max_msgs": 1, "subjects": ["s", "t"]}
    consumer = {"durable_name": "C", "max_ack_pending": 7, **PULL}
    new = {"durable_name": "D", **PULL}
    return [
        ("STREAM.CREATE", "N", {"name": "N", "subjects": ["n"], "num_replicas": stream["num_replicas"]}),
        ("STREAM.UPDATE", "S", changed),
        ("STREAM.UPDATE", "S", {**stream, "num_replicas": 4 - stream["num_replicas"]}),
        ("STREAM.UPDATE", "S", {**stream, "placement": {"tags": []}, "description": "x"}),
        ("STREAM.DELETE", "S", None),
        ("STREAM.PURGE", "S", None),
        ("STREAM.PURGE", "S", {"keep": 1}),
        ("STREAM.MSG.DELETE", "S", {"seq": 2}),
        ("STREAM.LEADER.STEPDOWN", "S", None),
        ("STREAM.RESTORE", "R", {"config": {"name": "R", "subjects": ["r"]}, "state": {}}),
        ("STREAM.PEER.REMOVE", "S", {"peer": victim}),
        ("STREAM.PEER.EVACUATE", "S", {"peer": victim}),
        ("STREAM.CANCEL_MOVE", "S", None),
        ("CONSUMER.CREATE", "S.D", {"stream_name": "S", "config": new}),
        ("CONSUMER.CREATE", "S.C", {"stream_name": "S", "config": consumer}),
        ("CONSUMER.DURABLE.CREATE", "S.D", {"stream_name": "S", "config": new}),
        ("CONSUMER.DELETE", "S.C", None),
        ("CONSUMER.PAUSE", "S.C", {"pause_until": "2099-01-01T00:00:00Z"}),
        ("CONSUMER.RESET", "S.C", {"seq": 1}),
        ("CONSUMER.UNPIN", "S.C", {"group": "g"}),
        ("CONSUMER.LEADER.STEPDOWN", "S.C", None),
        ("CONSUMER.PEER.REMOVE", "S.C", {"peer": victim}),
        ("CONSUMER.PEER.EVACUATE", "S.C", {"peer": victim}),
        ("$OBJ", "b", {"action": "delete", "name": "o"}),
        ("META.LEADER.STEPDOWN", "", None),
        ("META.RESCUE", "", {"quorum_needed": 1}),
        ("SERVER.REMOVE", "", {"peer": victim}),
        ("SERVER.EVACUATE", "", {"peer": victim}),
        ("ACCOUNT.STREAM.MOVE", f"{ACCOUNT}.S", {"server": victim}),
        ("ACCOUNT.STREAM.CANCEL_MOVE", f"{ACCOUNT}.S", None),
        ("ACCOUNT.PURGE", ACCOUNT, None),
    ]


@pytest.fixture(autouse=True, scope="module")
def _endpoints() -> None:
    """They are imported in a thread, which a virtual loop has not."""
    asyncio.run(dispatch.load_endpoints())


def serve_api(node: Node) -> JetStreamApi:
    rng = SeededRng(next(node.cluster.seeds))
    context = ApiContext(node.js, node.cluster.loop, rng, node.log, node.name, node.services.runtime.budget)
    api = JetStreamApi(context, node.bus, system=True)
    api.start()
    return api


async def ask(node: Node, endpoint: str, rest: str, body: Any) -> dict[str, Any]:
    subject = ".".join(filter(None, ("$JS.API", endpoint, rest)))
    payload = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, Any] = json.loads((await node.request(subject.encode(), payload, 20.0))[2])
    return answer


def seen(cluster: Cluster) -> dict[str, Any]:
    """All that requests can change, on every server."""
    found: dict[str, Any] = {}
    for node in cluster:
        machine = node.js.meta.machine
        found[node.name] = {
            "streams": [assignment.to_dict() for assignment in machine.all_assignments()],
            "nodes": {peer: (known.name, known.draining) for peer, known in machine.nodes.items()},
            "removed": dict(machine.removed),
            "rescues": len(machine.rescues),
        }
        for gid, replica in node.js.replicas.items():
            consumers = [
                (state.name, state.cid, state.rules.config, state.delivered_sseq, state.floor_sseq, state.pins)
                for state in replica.consumers.table.by_cid.values()
            ]
            stored = [(msg.seq, msg.payload) for msg in replica.store.queries.scan(b">", 1)]
            found[f"{node.name} {gid}"] = (replica.machine.rules.config, stored, sorted(consumers, key=str))
    return found


async def fill(cluster: Cluster) -> Node:
    """S has messages and the consumer C, also on the disk of its leader, which is returned."""
    leader = cluster.leader("S")
    for number in range(5):
        await leader.publish(b"s", b"%d" % number)
    made = await ask(leader, "CONSUMER.CREATE", "S.C", {"stream_name": "S", "config": {"durable_name": "C", **PULL}})
    assert "error" not in made
    await cluster.equal("S")
    leader.kv.flush_now()
    return leader


async def settled(cluster: Cluster) -> None:
    """All that was to come true has come true."""
    await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
    await cluster.led("S")
    await asyncio.sleep(15)
    await cluster.led("S")
    await cluster.equal("S")


async def all_refused(node: Node, asked: list[tuple[str, str, Any]], *accepted: str) -> dict[str, dict[str, Any]]:
    """Asks all of them at once but for the accepted ones; the answers."""
    refused = [request for request in asked if request[0] not in accepted]
    answers = await asyncio.gather(*(ask(node, *request) for request in refused))
    told = {}
    for (endpoint, *_), answer in zip(refused, answers, strict=True):
        assert "error" in answer, (endpoint, answer)
        told[endpoint] = answer["error"]
    return told


def test_the_table_has_every_request_that_changes_something() -> None:
    changing = {endpoint for endpoint, *_ in requests(STREAM, "A")}
    assert changing | READING == {endpoint.name for endpoint in endpoints.ALL}
    assert not changing & READING


DECIDED_WITHOUT_IT = (
    "STREAM.CREATE",
    "STREAM.DELETE",
    "STREAM.PEER.REMOVE",
    "STREAM.PEER.EVACUATE",
    "STREAM.RESTORE",
    "META.LEADER.STEPDOWN",
    "SERVER.REMOVE",
    "SERVER.EVACUATE",
    "ACCOUNT.PURGE",
)
"""Requests that need no server of the stream: the meta group decides, and its answer is not that of the stream."""


@virtual_time
@pytest.mark.parametrize("stands_still", [False, True])
async def test_the_only_server_of_a_stream_is_away_or_stands_still(*, stands_still: bool) -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 1, subjects=["s"])
        home = await cluster.led("S")
        if home.js.meta.leading:
            await home.js.transfer_leaderships()
        await cluster.until(lambda: cluster.meta_leader() not in (None, home), what="another meta leader")
        others = [node for node in cluster if node is not cluster.leader("S")]
        apis = [serve_api(node) for node in cluster]
        victim = await fill(cluster)
        before = seen(cluster)
        asked = [request for request in requests(STREAM, victim.name) if request[0] != "$OBJ"]
        if stands_still:
            cluster.network.hold(victim.me)
        else:
            cluster.crash(victim.name)
        began = cluster.loop.time()
        told = await all_refused(others[0], asked, *DECIDED_WITHOUT_IT)
        assert cluster.loop.time() - began < 4.0
        if stands_still:
            await asyncio.sleep(5)
            cluster.network.release()
        else:
            update = await asyncio.wait_for(ask(others[0], *asked[1]), 0.1)
            assert (update["error"]["code"], update["error"]["err_code"]) == (500, 10118)
            assert told["STREAM.UPDATE"]["err_code"] == 10118
            apis.append(serve_api(cluster.restart(victim.name)))
        await settled(cluster)
        assert seen(cluster) == before
        for api in apis:
            await api.stop()


@virtual_time
async def test_a_leader_without_its_majority_that_has_not_noticed_yet() -> None:
    """It leads the stream and the meta group, and what it puts into its log is committed when the others are back."""
    async with Cluster() as cluster:
        apis = [serve_api(node) for node in cluster]
        for stream, subjects in (("S", ["s"]), ("OBJ_b", ["$OBJ.b.>"])):
            await cluster.create(stream, 3, subjects=subjects)
        leader = await fill(cluster)
        meta = cluster.meta_leader()
        assert meta is not None
        if meta is not leader:
            await ask(leader, "META.LEADER.STEPDOWN", "", {"placement": {"preferred": leader.name}})
            await cluster.until(lambda: cluster.meta_leader() is leader, what="one leader of both")
        before = seen(cluster)
        others = [node for node in cluster if node is not leader]
        for node in others:
            cluster.network.hold(node.me)
        began = cluster.loop.time()
        asked = requests({**STREAM, "num_replicas": 3}, others[0].name)
        await all_refused(leader, asked, "STREAM.LEADER.STEPDOWN", "META.LEADER.STEPDOWN")
        assert cluster.loop.time() - began < 4.5
        await asyncio.sleep(5)
        cluster.network.release()
        await settled(cluster)
        assert seen(cluster) == before
        for api in apis:
            await api.stop()


@virtual_time
async def test_a_task_works_for_who_waits_for_it_and_what_it_sets_off_does_not() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    async def until() -> float:
        return asked_until()

    assert left_for(loop, 3.0) == 3.0
    check_wanted(loop)
    wait_until(loop.time() + 2.0)
    assert asked_until() == loop.time() + 2.0
    assert await asyncio.ensure_future(until()) == float("inf")
    assert left_for(loop, 3.0) == pytest.approx(2.0 - MARGIN_SECONDS / 2)
    check_wanted(loop)
    await asyncio.sleep(2.0 - MARGIN_SECONDS + 0.01)
    with pytest.raises(GivenUpError):
        check_wanted(loop)
    await asyncio.sleep(MARGIN_SECONDS)
    assert left_for(loop, 3.0) == 0.0
