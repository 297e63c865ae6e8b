"""Each fault alone is got over, and what looks at the nodes and the seeds finds what is wrong."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jetcluster.raft.api import MembershipError, Role
from jetcluster.raft.core.changes import Changes
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.snapshots import Rejoin
from jetcluster.store.kv import KvError
from testkit.sim.deployment import SHRINKS, Deployment, Violation
from testkit.sim.layout import LAYOUTS
from testkit.sim.machine import DATA, DESCRIPTORS, JOURNAL
from testkit.sim.session import Session
from tests.sim.cluster import batch, liveness, nemesis, server_changes
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.expendable import expendable
from tests.sim.cluster.invariants import Invariants, Replica, jetstream_of, replicas
from tests.sim.cluster.nemesis import FAULTS, Rage
from tests.sim.cluster.run import run_seed, started
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.shrink import kind, shrink
from tests.sim.cluster.workload import SETTLE, found
from tests.sim.cluster.workloads.churn import Churn
from tests.sim.cluster.workloads.publish import Relaxed

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cluster_gets_over(fault: str) -> None:
    scenario = replace(
        Scenario.of(1),
        layout="three",
        workloads=("publish",),
        rage=Rage(faults=(fault,), hands=1, seconds=6.0, rest=2.0),
        processor=1.0,
        tls="",
    )
    assert run_seed(1, scenario=scenario).failure == ""


@pytest.fixture
def invariants(deployment: Deployment) -> Invariants:
    """Invariants of a cluster that was looked at once."""
    invariants = Invariants(deployment)
    invariants.look()
    return invariants


def meta(deployment: Deployment) -> tuple[Replica, list[Replica]]:
    """The leader's part of the meta group, and the others'."""
    found = list(replicas(deployment))
    leader = next(one for one in found if one.group.role is Role.LEADER)
    return leader, [one for one in found if one is not leader]


def test_a_seed_draws_workloads_and_exams_and_only_those_that_are_asked_for() -> None:
    drawn = [Scenario.of(seed).workloads for seed in range(2000)]
    often = Counter(name for names in drawn for name in names)
    assert often.keys() == found().keys()
    assert min(often.values()) >= 3
    for names in drawn:
        examined = all(found()[name].examined for name in names)
        assert examined <= sum(issubclass(found()[name], Exam) for name in names) <= 5 * examined
        assert any(not issubclass(found()[name], Exam) or found()[name].layout for name in names)
    only = {"registers", "exam-core"}
    assert {name for seed in range(20) for name in Scenario.of(seed, only).workloads} == only


def test_faults_that_the_product_does_not_get_over_are_drawn_where_that_is_asked_for() -> None:
    assert FAULTS.keys() > nemesis.WIDE
    drawn = {
        wider: {fault for seed in range(400) for fault in Scenario.of(seed, wider=wider).rage.faults}
        for wider in (False, True)
    }
    assert drawn == {False: FAULTS.keys() - nemesis.WIDE, True: FAULTS.keys()}
    assert Scenario.of(4, {"publish"}, faults=("left_behind",)).layout == "five"


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_second_leader_of_a_term_is_noticed(deployment: Deployment, invariants: Invariants, relaxed: bool) -> None:
    if relaxed:  # entries wait for a sync, and votes do not
        deployment.servers["n3"] = replace(deployment.servers["n3"], sync_interval=1.0)
        deployment.power_failures.append(deployment.scheduler.now)
    leader, (other, _) = meta(deployment)
    other.group.role, other.group.term = Role.LEADER, leader.group.term
    with pytest.raises(Violation, match=f"leads term {leader.group.term}, as {leader.machine.name} did"):
        invariants.look()


def test_a_commit_index_that_goes_back_is_noticed(deployment: Deployment, invariants: Invariants) -> None:
    meta(deployment)[0].group.engine.commit -= 1
    with pytest.raises(Violation, match="its commit index went back"):
        invariants.look()


@pytest.mark.parametrize(("relaxed", "powerless"), [(True, True), (True, False), (False, True)])
def test_only_a_loss_of_power_takes_committed_entries_and_only_of_a_relaxed_log(
    deployment: Deployment, relaxed: bool, powerless: bool
) -> None:
    group = meta(deployment)[0].group
    group.log.relaxed = relaxed
    if powerless:
        deployment.power_failures.append(1.0)
    invariants = Invariants(deployment)
    invariants.look()
    group.engine.commit -= 1
    group.applied_index -= 1
    excused: AbstractContextManager[object] = nullcontext()
    if not (relaxed and powerless):
        excused = pytest.raises(Violation, match="its commit index went back")
    with excused:
        invariants.look()


def test_a_state_of_its_own_is_noticed(deployment: Deployment, invariants: Invariants) -> None:
    node = meta(deployment)[1][0].machine.node
    assert node is not None and node.jetstream is not None and node.jetstream.jetstream is not None
    node.jetstream.jetstream.meta.machine._digest = bytes(16)
    with pytest.raises(Violation, match=r"at index [0-9]+ not what"):
        invariants.look()


def test_a_replica_has_drifted_until_its_server_is_there_and_has_nothing_of_the_stream(
    deployment: Deployment, invariants: Invariants
) -> None:
    has = who_has_two_replicas(deployment)
    (gid,) = {one.gid for one in replicas(deployment) if one.stream is not None}
    (left,) = deployment.machines.keys() - has
    drifted = {(name, gid): 1 << 40 for name in deployment.machines}  # an index that none of them comes to
    deployment.drifted.update(drifted)
    deployment.machines[left].kill()
    invariants.look()
    assert deployment.drifted == drifted, "nobody knows what is there"
    deployment.machines[left].start()
    deployment.run(10.0)
    invariants.look()
    assert deployment.drifted.keys() == {(name, gid) for name in has}


def test_a_queue_above_its_bound_is_noticed(deployment: Deployment) -> None:
    group = meta(deployment)[0].group
    group.uncommitted = group.config.max_uncommitted * 2
    with pytest.raises(Violation, match="bytes of proposals"):
        Invariants(deployment).look()


def test_a_replica_stops_for_its_disk_and_for_nothing_else(deployment: Deployment) -> None:
    one = meta(deployment)[1][0]
    one.group.fault = KvError("EIO")
    with pytest.raises(Violation, match="apply raised KvError"):
        Invariants(deployment).look()
    one.machine.disk.incidents[f"{JOURNAL}1"] = 1
    with pytest.raises(Violation, match="apply raised KvError"):
        Invariants(deployment).look()
    one.machine.disk.incidents[f"{DATA}1"] = 1
    Invariants(deployment).look()
    one.group.fault = AssertionError()
    with pytest.raises(Violation, match="apply raised AssertionError"):
        Invariants(deployment).look()


def test_looking_changes_nothing() -> None:
    digests = []
    for looks in (False, True):
        deployment = Deployment(5, LAYOUTS["three"])
        for machine in deployment.machines.values():
            machine.start()
        if looks:
            Invariants(deployment).begin()
        deployment.run(8.0)
        digests.append(deployment.digest())
        deployment.close()
    assert digests[0] == digests[1]


def test_an_error_that_a_node_swallows_is_a_failure_unless_its_disk_fails(deployment: Deployment) -> None:
    machine = deployment.machines["n1"]
    assert machine.loop is not None
    log = machine.loop.log

    def fail(error: Exception) -> list[str]:
        try:
            raise error
        except type(error):
            log.exception("Mesh: reading failed")
        found = list(deployment.failures)
        deployment.failures.clear()
        return found

    assert fail(KeyError("x")) == ["n1: Mesh: reading failed KeyError('x')"]
    assert len(fail(KvError("EIO"))) == 1
    machine.disk.incidents[f"{DATA}1"] = 1
    assert fail(KvError("EIO")) == []
    assert len(fail(KeyError("x"))) == 1
    log.error("a consumer's owner failed", error="KeyError('x')")
    assert deployment.failures == ["n1: a consumer's owner failed: KeyError('x') None"]


@pytest.mark.parametrize("excused", [True, False])
def test_a_node_that_ends_by_itself_is_a_failure_unless_its_disk_fails(deployment: Deployment, excused: bool) -> None:
    machine = deployment.machines["n1"]
    assert machine.loop is not None and machine.node is not None
    machine.disk.incidents = {f"{DATA}1": 1} if excused else {}
    machine.loop.from_outside(machine.node.give_up, "nobody knows why")
    deployment.run(10.0)
    text = "n1 ends by itself with 1, and nothing has happened to its disk: nobody knows why"
    assert deployment.failures == ([] if excused else [text])


def test_a_node_that_stops_without_a_signal_is_a_failure_also_where_it_says_that_all_is_well(
    deployment: Deployment,
) -> None:
    machine = deployment.machines["n1"]
    machine.signal(signal.SIGTERM)
    deployment.run(5.0)
    machine.start()
    deployment.run(5.0)
    assert deployment.failures == [] and machine.exits == [0]
    assert machine.loop is not None and machine.node is not None
    machine.loop.from_outside(machine.node.interrupt)
    deployment.run(5.0)
    assert machine.exits == [0, 0]
    assert deployment.failures == ["n1 ends by itself with 0, and nothing has happened to its disk: "]


def free(deployment: Deployment, *, even: bool = False) -> set[str]:
    """Machines that may lose what they have."""
    found = [expendable(deployment, Random(seed), even=even) for seed in range(30)]
    return {machine.name for machine in found if machine is not None}


def test_data_is_damaged_on_any_machine_and_only_where_a_majority_has_it(deployment: Deployment) -> None:
    assert free(deployment) == {"n1", "n2", "n3"}
    deployment.machines["n2"].pause()
    assert free(deployment) == set()


def test_the_next_machine_is_damaged_once_the_one_before_is_whole_again(deployment: Deployment) -> None:
    machine = deployment.machines["n1"]
    path = next(path for path, file in machine.disk.tree(JOURNAL) if file.sectors)
    machine.disk.rot(path, 0, 1)
    machine.harm(path)
    assert free(deployment) == {"n1"}, "nobody knows of it"
    machine.kill()
    machine.start()
    assert free(deployment) == set()
    deployment.run(15.0)
    assert free(deployment) == {"n1", "n2", "n3"}, "the journal was read when the node started"
    machine.lose_power()
    machine.new_disk()
    machine.start()
    deployment.run(1.0)
    assert "n2" not in free(deployment), "it has nothing yet"
    deployment.run(30.0)
    assert free(deployment) == {"n1", "n2", "n3"}


def test_who_is_about_to_vote_is_spared_where_another_new_voter_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 660000051: one of three was wiped, a second one replaced, and the third one's successor had caught up. Its
    journal was damaged, and its leader made it a voter before it heard of that: nobody could lead any more."""
    deployment = started("five")
    everybody = set(deployment.machines)

    async def ask(subject: str, body: dict[str, Any]) -> None:
        client = Session("client", deployment.addresses())
        await client.connect()
        await client.api(subject, body)
        await client.close()

    def do(subject: str, body: dict[str, Any]) -> None:
        deployment.run_until_done(deployment.spawn(deployment.client(subject), ask(subject, body)), 10.0)
        deployment.run(2.0)

    def refuse(*args: object) -> None:
        raise MembershipError("not yet")

    do("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    found = {one.machine.name: one.group for one in replicas(deployment) if one.stream is not None}
    leader = next(name for name, group in found.items() if group.role is Role.LEADER)
    stays, leaves = sorted(found.keys() - {leader})
    monkeypatch.setattr(Group, "change_voters", refuse)
    with monkeypatch.context() as until:
        until.setattr(Rejoin, "on_reply", lambda *args: None)
        do("STREAM.PEER.REMOVE.S", {"peer": leaves})
        (coming,) = (one for one in replicas(deployment) if one.stream is not None and one.machine.name not in found)
        assert coming.group.log.joining
        assert free(deployment) == everybody, "who comes is no voter before it has everything"
    comes = coming.machine.name
    deployment.run(2.0)
    assert not coming.group.log.joining
    assert free(deployment) == everybody, "a majority of those who stay, or come, has it without any of them"
    deployment.machines[stays].kill()
    assert free(deployment) == everybody - {*found, comes}
    monkeypatch.undo()
    deployment.machines[stays].start()
    deployment.run(10.0)
    assert free(deployment) == everybody
    deployment.close()


def test_who_is_about_to_vote_in_the_meta_group_counts_as_a_voter(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = started()
    monkeypatch.setattr(Changes, "on_progress", lambda *args: None)
    control = deployment.client("administrator")
    deployment.run_until_done(deployment.spawn(control, server_changes.join(deployment, Random(1))), 10.0)
    deployment.run(5.0)
    assert free(deployment) == {"n1", "n2", "n3", "j1"}
    deployment.machines["n3"].kill()
    assert free(deployment) == set(), "of n1, n2, n3 and j1 only two would be left without j1"
    deployment.close()


def test_what_hides_in_a_data_store_spares_all_others_as_long_as_it_is_there(deployment: Deployment) -> None:
    machine = deployment.machines["n1"]
    path = next(path for path, file in machine.disk.tree(DATA) if file.sectors)
    machine.disk.rot(path, 0, 1)
    machine.harm(path)
    assert free(deployment) == {"n1"}
    with deployment.resizing(1) as copies:
        assert copies == 3, "that machine must not come to have the only copy"
    machine.disk.files.unlink(path)
    assert not machine.hides_damage


def test_no_data_is_damaged_of_a_stream_that_is_about_to_have_one_replica(deployment: Deployment) -> None:
    """It does not hang on what its group says of its voters."""
    churn = Churn(deployment, Random(1))

    async def create() -> None:
        session = await churn.session("one")
        await session.api("STREAM.CREATE.S", {"name": "S", "num_replicas": 3, "subjects": ["S.>"]})
        await session.close()

    deployment.run_until_done(deployment.spawn(churn.loop, create()), 10.0)
    deployment.run(5.0)
    assert free(deployment) == {"n1", "n2", "n3"}
    with deployment.resizing(1) as copies:
        assert copies == 1 and free(deployment) == set()
    assert free(deployment) == {"n1", "n2", "n3"}
    with pytest.raises(TimeoutError), deployment.resizing(1):
        raise TimeoutError
    assert free(deployment) == set(), "it may come to that all the same"
    deployment.run(SHRINKS + 1.0)
    jetstream = jetstream_of(deployment.machines["n2"])
    (assignment,) = jetstream.meta.machine.all_assignments()
    object.__setattr__(assignment, "peers", assignment.peers[:1])
    assert free(deployment) == set()


def who_has_two_replicas(deployment: Deployment) -> set[str]:
    """The servers of a new stream that has two."""
    churn = Churn(deployment, Random(1))

    async def create() -> None:
        session = await churn.session("one")
        await session.api("STREAM.CREATE.S", {"name": "S", "num_replicas": 2, "subjects": ["S.>"]})
        await session.close()

    deployment.run_until_done(deployment.spawn(churn.loop, create()), 10.0)
    deployment.run(5.0)
    return {one.machine.name for one in replicas(deployment) if one.stream is not None}


@pytest.mark.parametrize("even", [True, False])
def test_one_of_two_voters_is_spared_unless_the_other_one_is_to_be_enough(deployment: Deployment, even: bool) -> None:
    has = who_has_two_replicas(deployment)
    assert free(deployment, even=even) == ({"n1", "n2", "n3"} if even else {"n1", "n2", "n3"} - has)


@pytest.mark.parametrize("voter", [True, False])
def test_one_of_two_voters_is_damaged_and_stays_who_it_is(deployment: Deployment, voter: bool) -> None:
    """A server without a replica of the stream is wiped."""
    has = who_has_two_replicas(deployment)
    names = {
        seed: machine.name
        for seed in range(30)
        if (machine := expendable(deployment, Random(seed), even=True)) is not None
    }
    seed = next(seed for seed, name in names.items() if (name in has) is voter)
    machine = deployment.machines[names[seed]]
    before, starts = machine.peer_id, machine.starts
    control = deployment.client("control")
    fault = FAULTS["wipe_even"](deployment, Random(seed))
    deployment.run_until_done(deployment.spawn(control, fault, "the fault"), 10.0)
    assert machine.starts == starts + 1
    settling = deployment.spawn(control, liveness.settle(deployment), "settling")
    deployment.run_until_done(settling, liveness.SETTLES + 1.0)
    assert (machine.peer_id == before) is voter
    assert not machine.hides_damage


@pytest.mark.parametrize(("copies", "wiped", "goes_on"), [(1, True, True), (1, False, False), (3, True, True)])
def test_only_a_stream_whose_one_server_lost_its_disk_is_given_up(
    deployment: Deployment, copies: int, wiped: bool, goes_on: bool
) -> None:
    """A stream that gets no leader for any other reason is still a failure."""
    churn = Churn(deployment, Random(1))
    config = {"name": "S", "num_replicas": copies, "allow_direct": True, "subjects": ["S.>"]}

    async def create() -> str:
        session = await churn.session("one")
        await session.api("STREAM.CREATE.S", config)
        await session.close()
        (leader,) = (one.machine.name for one in replicas(deployment) if one.stream and one.group.role is Role.LEADER)
        return leader

    task = deployment.spawn(churn.loop, create())
    deployment.run_until_done(task, 10.0)
    machine = deployment.machines[task.result()]
    machine.lose_power()
    if wiped:
        machine.new_disk()
    assert churn.is_lost("S") is (copies == 1 and wiped)

    async def create_again() -> None:
        others = [name for name in deployment.members() if name != machine.name]
        await churn.create_own(await churn.session("two", *others), "S", copies)

    again = deployment.spawn(churn.loop, create_again())
    if goes_on:
        deployment.run_until_done(again, SETTLE)
    else:
        with pytest.raises(Violation, match=f"creating S fails for {SETTLE} s"):
            deployment.run_until_done(again, SETTLE + 10.0)
    assert churn.counts.get("lost before they were created", 0) == int(copies == 1 and wiped)


def test_a_creation_that_is_acknowledged_for_a_server_just_lost_is_begun_again(deployment: Deployment) -> None:
    """The meta group decides it before the others know that the server is gone; nobody would ever take a message."""
    churn = Churn(deployment, Random(1))
    lost = next(one.machine for one in replicas(deployment) if one.stream is None and one.group.role is not Role.LEADER)
    others = [name for name in deployment.members() if name != lost.name]

    async def create() -> None:
        session = await churn.session("one", *others)
        lost.lose_power()
        lost.new_disk()
        streams = [f"S{number}" for number in range(3)]
        await asyncio.gather(*(churn.create_own(session, stream, 1) for stream in streams))
        for stream in streams:
            await churn.store_logged(churn.logs[stream], session, f"{stream}.x", "0")

    deployment.run_until_done(deployment.spawn(churn.loop, create()), 30.0)
    assert churn.counts["created"] == 3
    assert churn.counts["lost before they were created"]


@pytest.mark.parametrize("excused", [True, False])
def test_only_a_loss_of_power_excuses_a_consumer_that_is_gone(deployment: Deployment, excused: bool) -> None:
    relaxed = Relaxed(deployment, Random(1))

    async def pull() -> None:
        await relaxed.prepare()
        relaxed.reader = await relaxed.session("pull")
        if excused:
            deployment.power_failures.append(relaxed.now)
        await relaxed.admin.api("CONSUMER.DELETE.RELAXED.reader")
        await relaxed._pull()

    deployment.run_until_done(deployment.spawn(relaxed.loop, pull()), 20.0)
    assert relaxed.counts.get("consumers created again", 0) == int(excused)


def test_what_does_not_matter_is_left_out() -> None:
    rage = Rage(("kill", "pause", "rot"), hands=2, seconds=30.0, rest=1.0)
    scenario = replace(Scenario.of(3), rage=rage, skew=30.0, layout="five", tls="")

    def run(tried: Scenario) -> str:
        return f"at {tried.rage.seconds}: lost 7" if "pause" in tried.rage.faults and tried.layout == "five" else ""

    found = shrink(scenario, run)
    assert found is not None
    assert found.rage == Rage(("pause",), hands=1, seconds=2.0, rest=1.0)
    assert (found.skew, found.layout) == (0.0, "five")
    assert shrink(scenario, lambda tried: "") is None


def test_another_failure_is_not_taken_for_the_same() -> None:
    assert kind("x\nat 3.25: lost 7") == kind("at 9: lost 12") != kind("at 9: found 12")


def test_totals_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "TOTALS", tmp_path / "totals.toml")
    (tmp_path / "totals.toml").write_text("seeds = 1\nfailed = 0\nhours = 1.5\ncpu_seconds = 2\n")
    totals = batch.Totals()
    totals.add(batch.Outcome(7, "lost", "", 1_800.0, 3.0))
    batch.record(totals)
    assert batch.recorded() == batch.Totals(2, 1, 2.0, 5.0)
    assert "replay: python -m tests.sim.cluster --seed 7" in str(batch.Outcome(7, "lost", "", 1.0, 1.0))


def test_what_happened_to_a_disk_excuses_two_processes_and_what_still_hides(deployment: Deployment) -> None:
    machine = deployment.machines["n1"]
    path, _ = next(machine.disk.tree(JOURNAL))
    assert not machine.disk_troubled()
    machine.kill()
    machine.disk.rot(path, 0)
    machine.start()
    deployment.run(5.0)
    assert machine.disk_troubled() and machine.disk_troubled(JOURNAL) and not machine.disk_troubled(DATA)
    machine.kill()
    machine.start()
    deployment.run(5.0)
    assert not machine.disk_troubled()
    machine.harm(next(machine.disk.tree(DATA))[0])
    assert machine.disk_troubled(DATA) and not machine.disk_troubled(JOURNAL)
    machine.kill()
    machine.new_disk()
    machine.start()
    deployment.run(5.0)
    assert not machine.disk_troubled()
    machine.fills += 1
    assert machine.disk_troubled(DATA)


@pytest.mark.parametrize("shortage", ["memory", "descriptors", "no descriptors"])
def test_who_runs_short_says_so_and_leads_no_more(deployment: Deployment, shortage: str) -> None:
    leader, _ = meta(deployment)
    machine = leader.machine
    if shortage == "memory":
        machine.memory_trouble = "31 GiB are used of 32 GiB"
    else:
        machine.descriptors = None if shortage == "no descriptors" else DESCRIPTORS - 100
    assert machine.is_short
    deployment.run(10.0)
    assert any(machine.name in text for text in liveness.ailing(deployment))
    assert meta(deployment)[0].machine is not machine
    nemesis.calm(deployment)
    deployment.run(10.0)
    assert not machine.is_short and list(liveness.ailing(deployment)) == []
