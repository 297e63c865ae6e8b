"""The meta group of a cluster that has lost its majority (cluster/meta_rescue.py)."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.cluster.meta_rescue import LEADERLESS_SECONDS, SurvivorView, plan_of
from jetcluster.errors import ApiError, by_code
from jetcluster.raft.rescue import TERM_STEP, ReplicaReport, RescueError
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.cluster.mesh_support import Heard

BY = "sys ops 127.0.0.1"


def view(peer: str, everybody: str = "AB", **changes: Any) -> SurvivorView:
    standing = ReplicaReport(peer, 1, 5, None, 5, 100, 90, tuple("ABCDE"), (), 0, False, "")
    known = {key: changes.pop(key) for key in list(changes) if key in ReplicaReport._fields}
    found = SurvivorView(f"n{peer}", f"N{peer}", standing._replace(**known), frozenset(everybody) - {peer}, 60.0)
    return found._replace(**changes)


def test_the_most_advanced_log_wins() -> None:
    plan = plan_of({"A": view("A", term=9), "B": view("B", last_index=101)}, set(), 2)
    assert (plan.winner, plan.voters, plan.learners, plan.term) == ("B", ("A", "B"), (), 9 + TERM_STEP)
    assert (plan.quorum_before, plan.quorum, plan.place) == (3, 2, (5, 101))
    plan = plan_of({"A": view("A", last_term=6, last_index=50), "B": view("B")}, set(), 2)
    assert plan.winner == "A"
    plan = plan_of({"A": view("A"), "B": view("B", damaged=True)}, set(), 2)
    assert (plan.winner, plan.voters, plan.learners) == ("A", ("A",), ("B",))
    plan = plan_of({"A": view("A"), "B": view("B", damaged=True, last_index=101)}, set(), 2)
    assert (plan.winner, plan.voters, plan.learners) == ("B", ("A", "B"), ())
    # All are damaged: one is enough, and the others learn from it.
    damaged = {peer: view(peer, "ABCDE", damaged=True) for peer in "ABCDE"}
    plan = plan_of(damaged, set(), 3)
    assert (plan.winner, plan.voters, plan.learners, plan.survivors) == ("E", ("E",), tuple("ABCD"), tuple("ABCDE"))
    with_learner = {peer: view(peer, voters=("A", "B", "C", "D"), learners=("L",)) for peer in "AB"}
    plan = plan_of({**with_learner, "L": view("L", voters=("A", "B", "C", "D"), learners=("L",))}, set(), 2)
    assert (plan.voters, plan.learners, plan.survivors) == (("A", "B"), ("L",), ("A", "B"))


TWO = {"A": view("A"), "B": view("B")}


@pytest.mark.parametrize(
    ("views", "silent", "quorum", "why"),
    [
        ({}, "", 1, "not a voting member"),
        ({"A": view("A", standing=None)}, "", 1, "not a voting member"),
        ({"A": view("A", voters=("B", "C"))}, "", 1, "not a voting member"),
        (TWO, "", 0, "between 1 and current quorum"),
        (TWO, "", -1, "between 1 and current quorum"),
        (TWO, "", 4, "between 1 and current quorum"),
        ({"A": view("A"), "B": view("B", leader="B")}, "", 2, "raft: leader is known"),
        (TWO, "", 3, "of the voters 2 are left (nA, nB), not 3"),
        (TWO, "", 1, "with a quorum of 1 two of them could lead at once, ask for 2"),
        ({p: view(p, "ABC") for p in "ABC"}, "", 3, "3 of 5 voters are connected, which is a majority"),
        (TWO, "C", 2, "C is connected and does not answer"),
        ({"A": view("A"), "B": view("B", "ABC")}, "", 2, "nB is connected with voter C: ask that server"),
        ({"A": view("A"), "B": view("B", "B")}, "", 2, "nB is not connected with nA"),
        ({"A": view("A"), "B": view("B", stopped="boom")}, "", 2, "the meta replica of nB has stopped (boom)"),
        ({"A": view("A"), "B": view("B", leaderless=1.0)}, "", 2, "a leader was known to nB 1.0 s ago"),
        ({p: view(p, last_index=0, last_term=0) for p in "AB"}, "", 2, "log is empty"),
    ],
)
def test_who_is_no_case_for_a_rescue(views: dict[str, SurvivorView], silent: str, quorum: int, why: str) -> None:
    with pytest.raises(RescueError) as caught:
        plan_of(views, set(silent), quorum)
    assert why in str(caught.value)


async def rescue(node: Node, quorum: int) -> dict[str, Any]:
    """Answers of the servers to a rescue of the meta group, by server name."""
    return {answer.pop("server"): answer for answer in await node.js.rescue_meta(quorum, BY)}


async def crashed(cluster: Cluster, names: str) -> None:
    cluster.crash(names)
    await cluster.until(lambda: all(node.js.meta.group.leader is None for node in cluster), what="no leader")
    await cluster.until(lambda: _leaderless(cluster), what="no leader for long enough")


def _leaderless(cluster: Cluster) -> bool:
    now = cluster.loop.time()
    return all(now - node.js.meta_rescue._led_at > LEADERLESS_SECONDS for node in cluster)


def told(cluster: Cluster, *names: str) -> dict[str, list[str]]:
    """Notes what the nodes hear when they are refused for good."""
    heard: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        cluster[name].mesh.listener = Heard(lambda age, text, name=name: heard[name].append(text))
    return heard


def rescued(node: Node, quorum: int) -> dict[str, Any]:
    """The answer of a node of which `quorum` were a majority before, with one less."""
    assert node.mesh.me.server_id
    return {"server_id": node.mesh.me.server_id, "prev_quorum": quorum, "new_quorum": quorum - 1}


@virtual_time
async def test_two_of_five_go_on() -> None:
    async with Cluster("ABCDE") as cluster:
        for number in range(6):
            await cluster.create(f"S{number}", 3)
        ids = {node.me: node.name for node in cluster}
        await crashed(cluster, "CDE")
        await cluster.never(lambda: cluster.meta_leader() is not None, 5)
        answers = await rescue(cluster["B"], 2)
        assert answers == {name: rescued(cluster[name], 3) for name in "AB"}
        await cluster.until(lambda: cluster.meta_leader() is not None, 2, "a meta leader")
        for node in cluster:
            await cluster.until(lambda node=node: bool(node.js.meta.machine.rescues), what="all know of it")
            (record,) = node.js.meta.machine.rescues
            assert (record.number, record.by, record.at_ns > 0) == (1, BY, True)
            assert sorted(record.survivors.values()) == ["A", "B"] and sorted(record.lost.values()) == list("CDE")
            assert set(node.js.meta.group.peers) == {cluster["A"].me, cluster["B"].me}
            assert "the meta group was rescued" in " ".join(node.log.events("warning"))
        await cluster.create("NEW", 1)
        await cluster["A"].publish(b"new")
        # Streams with a majority of replicas here go on, the others wait.
        for number in range(6):
            assignment = cluster["A"].js.assignment("$G", f"S{number}")
            assert assignment is not None
            here = [peer for peer in assignment.peers if ids[peer] in "AB"]
            if len(here) == 2:
                leader = await cluster.led(f"S{number}")
                assert (await leader.publish(b"s%d" % number))["seq"] == 1
            else:
                assert not any(n.has(f"S{number}") and n.replica(f"S{number}").leading for n in cluster)
        answers = await rescue(cluster["A"], 2)
        assert all("raft: leader is known" in answer["error"]["description"] for answer in answers.values())


@virtual_time
async def test_those_that_were_given_up_stay_out_and_empty_ones_take_their_places() -> None:
    async with Cluster("ABCDE") as cluster:
        await cluster.create("S", 5)
        await cluster["A"].publish(b"s")
        await crashed(cluster, "CDE")
        await rescue(cluster["A"], 2)
        await cluster.until(lambda: all(node.js.meta.machine.rescues for node in cluster), what="all know of it")
        lost = {cluster[name].me for name in "CDE"}
        cluster.restart("CDE")
        heard = told(cluster, *"CDE")
        await cluster.until(lambda: all(heard.values()), what="all hear it")
        assert all("was rescued without" in texts[0] for texts in heard.values())
        survivors = (cluster["A"], cluster["B"])
        await cluster.never(lambda: any(lost & node.mesh.peers.keys() for node in survivors), 5)
        assert all(node.js.meta.group.term > TERM_STEP for node in survivors)
        assert {n.name for n in survivors if n.js.meta.leading} & {"A", "B"}
        # The same after everybody who knows has started again.
        for name in "AB":
            await cluster.stop(name)
        cluster.restart("AB")
        heard = told(cluster, *"CDE")
        cluster.heal()
        await cluster.until(lambda: all(heard.values()), what="all hear it again")
        for name in "CDE":
            cluster.crash(name)
            cluster.add(name)
        wanted = {node.me for node in cluster}
        survivor = cluster["A"]
        await cluster.until(
            lambda: set(survivor.js.meta.group.peers) == wanted and wanted <= survivor.js.meta.machine.nodes.keys(),
            60, "five again",
        )  # fmt: skip
        assert survivor.js.meta.group.fenced == lost


@virtual_time
async def test_one_that_died_before_it_wrote_down_what_is_committed_stays_out_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It knows the voters' keys by its log alone."""
    monkeypatch.setattr("jetcluster.raft.node.RaftNode._housekeep", lambda self, now: None)
    async with Cluster("ABCDE") as cluster:
        await crashed(cluster, "CDE")
        await rescue(cluster["A"], 2)
        await cluster.until(lambda: all(node.js.meta.machine.rescues for node in cluster), what="all know of it")
        cluster.restart("C")
        heard = told(cluster, "C")
        await cluster.until(lambda: bool(heard["C"]), what="it hears it")
        assert not cluster["C"].js.meta.machine.nodes


@virtual_time
async def test_a_single_survivor() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        await cluster.create("R", 1, ask="A")
        await crashed(cluster, "BC")
        assert list((await rescue(cluster["A"], 1)).values()) == [rescued(cluster["A"], 2)]
        await cluster.until(lambda: cluster.meta_leader() is cluster["A"], what="it leads")
        await cluster.create("NEW", 1)


@virtual_time
async def test_a_rescue_that_was_cut_off_is_finished_by_the_one_that_has_it() -> None:
    """The winner dies right after its disk has the new configuration. It comes back, and that is in force."""
    async with Cluster("ABCDE") as cluster:
        await crashed(cluster, "CDE")
        views, silent = await cluster["A"].js.meta_rescue._look_around()
        names = {node.me: node.name for node in cluster}
        winner = cluster[names[plan_of(views, silent, 2).winner]]
        other = next(node for node in cluster if node is not winner)
        group = winner.js.meta.group

        def forced() -> bool:
            log = winner.raft.groups[1].log
            return log.rescues == 1 and log.durable_index == log.last_index

        task = cluster.loop.create_task(rescue(other, 2))
        await cluster.until(forced, what="forced")
        cluster.crash(winner.name)
        answers = await task
        assert all("error" in answer for answer in answers.values())
        assert group is not None
        cluster.restart(winner.name)
        await cluster.until(lambda: cluster.meta_leader() is not None, what="a leader")
        await cluster.until(lambda: all(node.js.meta.machine.rescues for node in cluster), what="all know")


@virtual_time
async def test_refusals_are_everybodys_and_leave_nothing_behind() -> None:
    async with Cluster() as cluster:
        before = {node.name: node.js.meta.group.term for node in cluster}
        answers = await rescue(cluster["B"], 2)
        assert sorted(answers) == ["A", "B", "C"]
        for answer in answers.values():
            assert answer["error"] == {
                "code": 400, "err_code": 10224,
                "description": "JetStream system rescue not applied: raft: leader is known",
            }  # fmt: skip
        bad = await cluster["B"].js.rescue_meta(by_code(10003), BY)
        assert [answer["error"]["err_code"] for answer in bad] == [10003] * 3 and bad[0]["server"] == "B"
        assert isinstance(by_code(10003), ApiError)
        cluster.crash("C")
        await cluster.until(lambda: cluster.meta_leader() is not None, what="a leader")
        answers = await rescue(cluster["A"], 1)
        assert all("leader is known" in answer["error"]["description"] for answer in answers.values())
        cluster.isolate("A")
        await cluster.until(lambda: all(node.js.meta.group.leader is None for node in cluster), what="no leader")
        answers = await rescue(cluster["A"], 1)
        assert "a leader was known to A" in answers["A"]["error"]["description"]
        cluster.heal()
        await cluster.until(lambda: cluster.meta_leader() is not None, what="a leader")
        assert all(node.js.meta.group.term < before[node.name] + 20 for node in cluster)
        assert not any(node.js.meta.machine.rescues for node in cluster)
