from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.meta.machine import REMEMBERED_REQUESTS, MetaMachine
from jetcluster.meta.state import (
    Assignment,
    ClusterNamed,
    ClusterRescued,
    NodeChanged,
    Rescue,
    StreamAssigned,
    StreamRemoved,
    StreamUpdated,
)
from jetcluster.model.stream import StreamConfig
from jetcluster.stream.rules import RESTORING

NO_LIMITS = {"max_streams": -1, "max_memory": -1, "max_storage": -1}


def config(name: str, **fields: Any) -> dict[str, Any]:
    return StreamConfig(name=name, **fields).normalised().to_wire()


class Driver:
    """Feeds commands with rising indexes and fresh request ids."""

    def __init__(self, machine: MetaMachine | None = None) -> None:
        self.machine = machine or MetaMachine()
        self.index = self.machine.applied_index
        self.effects: list[Any] = []

    def apply(self, kind: str, **body: Any) -> dict[str, Any]:
        self.index += 1
        command = {"kind": kind, "request": f"r{self.index}", **body}
        result, self.effects = self.machine.apply(self.index, 1, json.dumps(command).encode())
        return result

    def create(
        self, name: str, account: str = "A", limits: dict[str, int] = NO_LIMITS, **fields: Any
    ) -> dict[str, Any]:
        return self.apply(
            "stream_create",
            account=account,
            config=config(name, **fields),
            peers=["n1", "n2", "n3"],
            leader="n2",
            created=5,
            limits=limits,
        )

    def update(self, name: str, **fields: Any) -> dict[str, Any]:
        return self.apply("stream_update", account="A", config=config(name, **fields), limits=NO_LIMITS)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def err(result: dict[str, Any]) -> int:
    return int(result["error"]["err_code"])


def test_create_assigns(driver: Driver) -> None:
    result = driver.create("S", subjects=["s.>"])
    assert result["created"] is True
    assigned = Assignment.from_dict(result["assignment"])
    assert (assigned.gid, assigned.peers, assigned.leader_hint, assigned.created_ns) == (2, ("n1", "n2", "n3"), "n2", 5)
    assert driver.effects == [StreamAssigned(assigned)]
    assert driver.machine.assignment("A", "S") == assigned
    assert driver.machine.by_gid(2) == assigned
    assert (driver.machine.replicas_on("n1"), driver.machine.leaders_on("n2"), driver.machine.leaders_on("n1")) == (
        1,
        1,
        0,
    )


def test_equal_create_is_answered_again_and_changes_nothing(driver: Driver) -> None:
    first = driver.create("S")
    again = driver.create("S", subjects=["S"])
    assert again["created"] is False
    assert again["assignment"] == first["assignment"]
    assert driver.effects == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "S", "max_msgs": 5}, 10058),
        ({"name": "T", "subjects": ["s.*"]}, 10065),
        ({"name": "T", "subjects": ["*.x"]}, 10065),
        ({"name": "T", "subjects": [">"]}, 10065),
        ({"name": "T", "subjects": ["a", "s.b.c"]}, 10065),
    ],
)
def test_refused_creates(fields: dict[str, Any], code: int, driver: Driver) -> None:
    driver.create("S", subjects=["s.>"])
    before = driver.machine.next_gid
    assert err(driver.create(fields.pop("name"), **fields)) == code
    assert driver.effects == []
    assert driver.machine.next_gid == before


def test_subjects_are_per_account_and_freed_by_delete_and_update(driver: Driver) -> None:
    driver.create("S", subjects=["s.>"])
    assert driver.create("S", account="B", subjects=["s.>"])["created"]
    driver.update("S", subjects=["other"])
    assert driver.create("T", subjects=["s.1"])["created"]
    assert err(driver.update("S", subjects=["s.*"])) == 10065
    assert driver.apply("stream_delete", account="A", name="T")["removed"] == 4
    assert "error" not in driver.update("S", subjects=["s.*"])


def test_delete_removes_and_never_reuses_the_gid(driver: Driver) -> None:
    first = driver.create("S")["assignment"]["gid"]
    driver.apply("stream_delete", account="A", name="S")
    assert [type(e) for e in driver.effects] == [StreamRemoved]
    assert err(driver.apply("stream_delete", account="A", name="S")) == 10059
    assert driver.create("S")["assignment"]["gid"] == first + 1
    assert driver.machine.replicas_on("n1") == 1


def test_update_replaces_and_tells_both(driver: Driver) -> None:
    driver.create("S")
    result = driver.update("S", max_msgs=7)
    effect = driver.effects[0]
    assert isinstance(effect, StreamUpdated)
    assert (effect.previous.config["max_msgs"], effect.assignment.config["max_msgs"]) == (-1, 7)
    assert result["assignment"]["revision"] == result["revision"] == driver.index
    assert driver.update("S", max_msgs=7)["assignment"]["revision"] == result["revision"]
    assert driver.effects == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"storage": "memory"}, "stream configuration update can not change storage type"),
    ],
)
def test_refused_updates(fields: dict[str, Any], text: str, driver: Driver) -> None:
    driver.create("S")
    result = driver.update("S", **fields)
    assert (result["error"]["err_code"], result["error"]["description"]) == (10052, text)
    assert driver.effects == []


def moved(driver: Driver, peers: list[str], tag: str, come_from: list[str] | None = None) -> dict[str, Any]:
    wanted = config("S", num_replicas=3, placement={"tags": [tag]})
    body = {"account": "A", "limits": NO_LIMITS, "from": come_from or ["n1", "n2", "n3"], "at": 9}
    return driver.apply("stream_update", config=wanted, peers=peers, **body)


def test_a_new_placement_moves_the_stream_and_can_be_cancelled(driver: Driver) -> None:
    driver.create("S", num_replicas=3)
    result = moved(driver, ["n4", "n2", "n5"], "x")
    assert result["assignment"]["peers"] == ["n4", "n2", "n5"]
    assert result["assignment"]["origin"] == {"peers": ("n1", "n2", "n3"), "placement": None, "since_ns": 9}
    assert result["assignment"]["config"]["placement"] == {"tags": ["x"]}
    assert result["assignment"]["founders"] == ["n2"]  # the others wait for the leader to bring them up
    other = MetaMachine()
    other.restore(driver.machine.snapshot())
    assert other.assignment("A", "S") == driver.machine.assignment("A", "S")
    revision = result["revision"]
    assert err(driver.apply("stream_move_cancel", account="A", name="S", revision=revision - 1)) == 10129
    assert err(driver.apply("stream_move_cancel", account="A", name="T", revision=revision)) == 10059
    back = driver.apply("stream_move_cancel", account="A", name="S", revision=revision)["assignment"]
    assert (back["peers"], back["origin"], "placement" in back["config"]) == (["n1", "n2", "n3"], None, False)
    again = driver.apply("stream_move_cancel", account="A", name="S", revision=back["revision"])
    assert err(again) == 10129


def test_a_move_worked_out_for_other_peers_is_void(driver: Driver) -> None:
    driver.create("S", num_replicas=3)
    assert err(moved(driver, ["n4", "n5", "n6"], "x", ["n1", "n2", "n9"])) == 10226
    assert err(driver.update("S", num_replicas=3, placement={"tags": ["x"]})) == 10226  # nobody says where
    assert err(driver.update("S", num_replicas=1)) == 10226
    assert err(moved(driver, ["n4", "n5"], "x")) == 10051
    assert driver.machine.assignment("A", "S").peers == ("n1", "n2", "n3")  # type: ignore[union-attr]


def test_an_allowed_placement_moves_nothing(driver: Driver) -> None:
    driver.create("S", num_replicas=3)
    result = moved(driver, ["n1", "n2", "n3"], "x")["assignment"]
    assert (result["peers"], result["origin"]) == (["n1", "n2", "n3"], None)
    moved(driver, ["n4", "n2", "n3"], "y")
    renamed = driver.apply(
        "stream_update", account="A", limits=NO_LIMITS,
        config=config("S", num_replicas=3, placement={"tags": ["y"]}, description="d"),
    )  # fmt: skip
    assert renamed["assignment"]["origin"]["peers"] == ("n1", "n2", "n3")  # still to be cancelled


def test_while_a_stream_is_restored_nothing_changes_it_but_the_end(driver: Driver) -> None:
    restoring = {**config("S", subjects=["s.>"]), "restoring": True}
    where = {"peers": ["n1"], "leader": "n1", "created": 5, "limits": NO_LIMITS}
    gid = driver.apply("stream_create", account="A", config=restoring, **where)["assignment"]["gid"]
    refused = driver.update("S", subjects=["s.>"], max_msgs=1)
    assert refused["error"]["description"] == "stream is being restored"
    assert driver.effects == []
    assert err(driver.apply("stream_restored", account="A", name="S", gid=gid + 1)) == 10059
    assert err(driver.apply("stream_delete", account="A", name="S", gid=gid + 1)) == 10059
    result = driver.apply("stream_restored", account="A", name="S", gid=gid)
    assert result["assignment"]["config"] == config("S", subjects=["s.>"])
    assert err(driver.apply("stream_restored", account="A", name="S", gid=gid)) == 10059
    assert driver.apply("stream_delete", account="A", name="S", gid=gid)["removed"] == gid


def test_an_update_of_the_replicas_says_where_they_are(driver: Driver) -> None:
    driver.create("S", num_replicas=3)
    body = {"account": "A", "limits": NO_LIMITS}
    for peers in ([], ["n1", "n2"], ["n9"]):  # as many as asked for, and some that hold the data
        refused = driver.apply("stream_update", config=config("S", num_replicas=1), peers=peers, **body)
        assert "error" in refused and driver.effects == []
    shrunk = driver.apply("stream_update", config=config("S", num_replicas=1), peers=["n2"], **body)
    assert shrunk["assignment"]["peers"] == shrunk["assignment"]["founders"] == ["n2"]
    grown = driver.apply("stream_update", config=config("S", num_replicas=3), peers=["n2", "n3", "n4"], **body)
    assert grown["assignment"]["peers"] == ["n2", "n3", "n4"]
    assert grown["assignment"]["founders"] == ["n2"]
    # Peers only follow the number: nobody moves a stream with an update that leaves it.
    same = driver.apply("stream_update", config=config("S", num_replicas=3), peers=["n2", "n7", "n8"], **body)
    assert same["assignment"]["peers"] == ["n2", "n3", "n4"]


def test_update_of_nothing() -> None:
    assert err(Driver().update("S")) == 10059


def test_limits(driver: Driver) -> None:
    limits = {"max_streams": 2, "max_memory": 100, "max_storage": 1000}
    assert driver.create("A", limits=limits, max_bytes=600)["created"]
    assert err(driver.create("B", limits=limits, max_bytes=401)) == 10047
    assert err(driver.create("B", limits=limits, max_bytes=51, num_replicas=2, storage="memory")) == 10028
    assert driver.create("B", limits=limits, max_bytes=50, num_replicas=2, storage="memory")["created"]
    assert err(driver.create("C", limits=limits)) == 10027
    assert driver.create("A", limits=limits, max_bytes=600)["created"] is False


def test_limits_of_a_tier_count_its_streams_and_one_replica_of_each(driver: Driver) -> None:
    one = {"max_streams": 2, "max_memory": 100, "max_storage": 1000, "replicas": 1}
    two = {"max_streams": 1, "max_memory": 0, "max_storage": 500, "replicas": 2}
    assert driver.create("A", limits=one, max_bytes=600)["created"]
    assert err(driver.create("B", limits=one, max_bytes=401)) == 10047
    assert err(driver.create("W", limits=two, max_bytes=501, num_replicas=2)) == 10047
    assert driver.create("W", limits=two, max_bytes=500, num_replicas=2)["created"]
    assert err(driver.create("X", limits=two, num_replicas=2)) == 10027
    assert driver.create("B", limits=one, max_bytes=400)["created"], "the other tier takes nothing away"
    assert err(driver.create("C", limits=one)) == 10027
    # A snapshot counts the same, and what goes makes room.
    again = MetaMachine()
    again.restore(driver.machine.snapshot())
    more = {"max_streams": 9}
    for machine in (driver, Driver(again)):
        assert err(machine.create("D", limits=one | more, max_bytes=1)) == 10047
        assert err(machine.create("D", limits=two, num_replicas=2)) == 10027
    driver.apply("stream_delete", account="A", name="W")
    assert driver.create("X", limits=two, max_bytes=500, num_replicas=2)["created"]
    # Into another tier by an update: what it has in its own does not count there.
    known = driver.machine.assignment("A", "B")
    assert known is not None
    body = {"account": "A", "peers": [known.peers[0], "n9"], "limits": two}
    assert err(driver.apply("stream_update", config=config("B", num_replicas=2, max_bytes=1), **body)) == 10047
    kept = driver.apply("stream_update", account="A", config=config("B", max_bytes=399), limits=one)
    assert "error" not in kept


def test_a_repeated_request_gets_the_first_verdict() -> None:
    machine = MetaMachine()
    command = json.dumps({"kind": "stream_delete", "request": "same", "account": "A", "name": "S"}).encode()
    Driver(machine).create("S")
    first, effects = machine.apply(2, 1, command)
    again, nothing = machine.apply(3, 2, command)
    assert (again, nothing) == (first, [])
    assert len(effects) == 1


def test_remembered_requests_are_bounded(driver: Driver) -> None:
    for _ in range(REMEMBERED_REQUESTS + 50):
        driver.apply("stream_delete", account="A", name="none")
    assert len(json.loads(driver.machine.snapshot())["verdicts"]) == REMEMBERED_REQUESTS


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"request":"x"}',
        b'{"request":"x","kind":"nope"}',
        b'{"request":"x","kind":"stream_create"}',
        b'{"request":"x","kind":"stream_create","account":"A","config":{"name":"S","subjects":[5]},"limits":{}}',
    ],
)
def test_a_bad_command_is_a_verdict_and_leaves_no_trace(raw: bytes) -> None:
    machine = MetaMachine()
    result, effects = machine.apply(1, 1, raw)
    assert err(result) == 10051
    assert effects == []
    assert (machine.next_gid, machine.all_assignments()) == (2, [])


def test_nodes(driver: Driver) -> None:
    body = {"peer": "n1", "name": "one", "tags": ["az:1"], "jetstream": True}
    driver.apply("node", **body)
    assert [type(e) for e in driver.effects] == [NodeChanged]
    driver.apply("node", **body)
    assert driver.effects == []
    assert driver.machine.nodes["n1"].tags == ("az:1",)
    driver.apply("node_remove", peer="n1")
    assert err(driver.apply("node_remove", peer="n1")) == 10044


def test_a_node_that_comes_back_empty_takes_its_old_place(driver: Driver) -> None:
    for peer, name in (("n1", "one"), ("n3", "three"), ("m3", "three")):
        driver.apply("node", peer=peer, name=name, tags=[], jetstream=True)
    driver.create("S")
    driver.create("ELSEWHERE", account="B")
    single = {"account": "A", "config": config("R1", num_replicas=1), "created": 5, "limits": NO_LIMITS}
    driver.apply("stream_create", **single, peers=["n3"], leader="n3")
    assert driver.apply("node_replace", peer="n3", by="m3")["moved"] == 2
    moved = [effect.assignment for effect in driver.effects if isinstance(effect, StreamUpdated)]
    assert [(a.name, a.peers, a.founders) for a in moved] == [
        ("S", ("n1", "n2", "m3"), ("n1", "n2")),
        ("ELSEWHERE", ("n1", "n2", "m3"), ("n1", "n2")),
    ]
    assert (driver.machine.replicas_on("n3"), driver.machine.replicas_on("m3")) == (1, 2)
    assert driver.machine.assignment("A", "R1").peers == ("n3",)  # type: ignore[union-attr]
    assert "n3" not in driver.machine.nodes
    # Only a founder may start with an empty log as a voter; one that was away in between is none any more. And only
    # with those with whom the stream began: it may be led by these.
    assert moved[0].first_peers("n1") == ("n2", "m3")
    assert moved[0].first_peers("m3") == ("n1", "n2")
    again = MetaMachine()
    again.restore(driver.machine.snapshot())
    assert [again.assignment("A", name).first_peers("n3") for name in ("S", "R1")] == [  # type: ignore[union-attr]
        ("n1", "n2", "m3"),
        ("n3",),
    ]
    assert again.assignment("A", "S") == moved[0] and again.snapshot() == driver.machine.snapshot()
    driver.apply("stream_peers", account="A", name="S", gid=moved[0].gid, peers=["n1", "m3", "n3"])
    driver.apply("stream_peers", account="A", name="S", gid=moved[0].gid, peers=["n1", "n2", "n3"])
    assert driver.machine.by_gid(moved[0].gid).founders == ("n1",)  # type: ignore[union-attr]
    assert err(driver.apply("node_replace", peer="n3", by="m3")) == 10044
    assert err(driver.apply("node_replace", peer="n1", by="nobody")) == 10051


def test_the_first_cluster_id_counts_and_travels_with_snapshots(driver: Driver) -> None:
    assert driver.apply("cluster", id="X")["id"] == "X"
    assert driver.effects == [ClusterNamed("X")]
    assert driver.apply("cluster", id="Y")["id"] == "X"
    assert driver.effects == []
    other = MetaMachine()
    assert other.restore(driver.machine.snapshot())[0] == ClusterNamed("X")
    assert other.cluster_id == "X"


def test_restore_gives_the_effects_that_lead_there() -> None:
    ahead, behind = Driver(), Driver()
    for driver in (ahead, behind):
        driver.create("KEPT")
        driver.create("GONE")
        driver.create("CHANGED")
    ahead.apply("stream_delete", account="A", name="GONE")
    ahead.update("CHANGED", max_msgs=1)
    ahead.create("NEW")
    ahead.apply("node", peer="n9", name="nine", tags=[], jetstream=True)
    effects = behind.machine.restore(ahead.machine.snapshot())
    assert [type(e).__name__ for e in effects] == ["NodeChanged", "StreamRemoved", "StreamUpdated", "StreamAssigned"]
    assert behind.machine.snapshot() == ahead.machine.snapshot()
    assert behind.machine.leaders_on("n2") == ahead.machine.leaders_on("n2") == 3


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version":2}', b'{"version":1,"streams":[{}]}', b"[]"])
def test_a_damaged_snapshot_is_refused(data: bytes, driver: Driver) -> None:
    driver.create("S")
    before = driver.machine.snapshot()
    with pytest.raises(ValueError):
        driver.machine.restore(data)
    assert driver.machine.snapshot() == before


names = st.sampled_from(["S1", "S2", "S3"])
subjects = st.lists(st.sampled_from(["a", "a.*", "a.b", "b.>", "*.c"]), max_size=2)
actions = st.one_of(
    st.tuples(st.just("create"), st.sampled_from("AB"), names, subjects),
    st.tuples(st.just("update"), st.just("A"), names, subjects),
    st.tuples(st.just("delete"), st.sampled_from("AB"), names, subjects),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(actions, max_size=25), st.integers(0, 25))
def test_replicas_agree_also_through_a_snapshot(steps: list[tuple[str, str, str, list[str]]], cut: int) -> None:
    log = []
    for number, (what, account, name, listed) in enumerate(steps, 1):
        body: dict[str, Any] = {
            "kind": f"stream_{what}",
            "request": f"r{number % 20}",
            "account": account,
            "name": name,
        }
        body |= {"config": config(name, subjects=listed), "limits": NO_LIMITS}
        body |= {"peers": ["n1"], "leader": "n1", "created": number} if what == "create" else {}
        log.append(json.dumps(body).encode())
    one, two = MetaMachine(), MetaMachine()
    gids: list[int] = []
    for index, command in enumerate(log, 1):
        result, effects = one.apply(index, 1, command)
        gids += [e.assignment.gid for e in effects if isinstance(e, StreamAssigned)]
        if index == cut:
            two = MetaMachine()
            two.restore(one.snapshot())
            continue
        assert two.apply(index, 3, command) == (result, effects)
    assert one.snapshot() == two.snapshot()
    assert one.digest == two.digest
    assert gids == sorted(set(gids)), "a group id was used twice"
    live = {a.gid for a in one.all_assignments()}
    for account in "AB":
        for a in one.assignments(account):
            assert a.gid in live
            for b in one.assignments(account):
                assert a.name == b.name or not _share(a, b)


def _share(a: Assignment, b: Assignment) -> bool:
    from jetcluster.model.subjects import overlap

    return any(overlap(x, y) for x in a.subjects for y in b.subjects)


def test_the_hash_tells_different_histories_apart() -> None:
    one, two = Driver(), Driver()
    one.create("S")
    two.create("T")
    assert one.machine.digest != two.machine.digest


RESCUE = {"number": 1, "at_ns": 7, "by": "ops", "survivors": {"n1": "N1"}, "lost": {"n2": "N2", "n3": "N3"}}


def cluster_of_three() -> Driver:
    driver = Driver()
    for peer in ("n1", "n2", "n3"):
        driver.apply("node", peer=peer, name=peer.upper(), tags=[], jetstream=True)
    return driver


def test_a_rescue_of_the_meta_group_keeps_the_lost_out_and_their_places() -> None:
    driver = cluster_of_three()
    driver.create("S")
    driver.apply("rescue", rescue=RESCUE)
    (effect,) = driver.effects
    assert isinstance(effect, ClusterRescued) and effect.rescue == Rescue.from_dict(RESCUE)
    machine = driver.machine
    assert machine.rescues == (effect.rescue,) and set(machine.left_out) == {"n2", "n3"} == set(machine.removed)
    assert set(machine.nodes) == {"n1", "n2", "n3"}
    assert machine.assignment("A", "S").peers == ("n1", "n2", "n3")  # type: ignore[union-attr]
    assert err(driver.apply("node", peer="n2", name="N2", tags=[], jetstream=True)) == 10044
    # The same number again is a defect, or somebody else's: it changes nothing.
    assert "error" in driver.apply("rescue", rescue={**RESCUE, "lost": {"n1": "N1"}})
    assert set(machine.left_out) == {"n2", "n3"}
    # Successors take their places, and SERVER.REMOVE their names, and they stay out.
    driver.apply("node", peer="x2", name="N2", tags=[], jetstream=True)
    driver.apply("node_replace", peer="n2", by="x2")
    driver.apply("node_remove", peer="n3", name="N3")
    assert machine.assignment("A", "S").peers == ("n1", "x2", "n3")  # type: ignore[union-attr]
    assert set(machine.left_out) == {"n2", "n3"} and set(machine.nodes) == {"n1", "x2"}


def test_rescues_are_in_the_snapshot() -> None:
    driver = cluster_of_three()
    plain = driver.machine.snapshot()
    assert b"rescue" not in plain
    driver.create("S")
    driver.apply("rescue", rescue=RESCUE)
    gid = driver.machine.assignment("A", "S").gid  # type: ignore[union-attr]
    driver.apply("stream_rescue", account="A", name="S", gid=gid, number=1, kept="n1", peers=["n2"])
    data = driver.machine.snapshot()
    fresh = MetaMachine()
    effects = fresh.restore(data)
    assert [e.rescue for e in effects if isinstance(e, ClusterRescued)] == list(driver.machine.rescues)
    assert fresh.snapshot() == data and not [e for e in fresh.restore(data) if isinstance(e, ClusterRescued)]


def test_a_rescued_stream_is_what_one_node_has() -> None:
    driver = cluster_of_three()
    driver.create("S")
    old = driver.machine.assignment("A", "S")
    assert old is not None
    body = {"account": "A", "name": "S", "gid": old.gid, "kept": "n3", "peers": ["n1", "n3"]}
    assert "error" not in driver.apply("stream_rescue", number=1, **body)
    new = driver.machine.assignment("A", "S")
    assert new is not None and driver.effects == [StreamUpdated(new, old)]
    assert (new.peers, new.founders, new.leader_hint, new.rescue) == (("n3", "n1"), ("n3",), "n3", 1)
    assert (new.kept, new.fenced) == ("n3", ("n1", "n2")) and new.config == old.config and new.revision == driver.index
    assert Assignment.from_dict(new.to_dict()) == new and "rescue" not in old.to_dict()
    # Sent twice is as sent once; another replica that somebody rescued as well stays out.
    assert driver.apply("stream_rescue", number=1, **body)["revision"] == new.revision
    assert driver.effects == []
    other = driver.apply("stream_rescue", number=1, **{**body, "kept": "n2"})
    assert err(other) == 10041 and "rescue 1 of the stream was done elsewhere" in other["error"]["description"]
    assert "error" not in driver.apply("stream_rescue", number=2, **{**body, "kept": "n1", "peers": []})
    again = driver.machine.assignment("A", "S")
    assert again is not None and (again.peers, again.fenced) == (("n1",), ("n2", "n3"))
    assert "error" in driver.apply("stream_rescue", number=3, **{**body, "gid": old.gid + 1})
    assert err(driver.apply("stream_rescue", number=3, **{**body, "name": "T"})) == 10059


def test_what_a_node_understands_is_kept_and_unknown_to_versions_before() -> None:
    machine = MetaMachine()
    node = {"kind": "node", "request": "1", "peer": "p", "name": "n", "tags": [], "jetstream": True}
    machine.apply(1, 1, json.dumps({**node, "level": 2}).encode())
    assert machine.nodes["p"].level == 2
    again = MetaMachine()
    again.restore(machine.snapshot())
    assert again.nodes["p"].level == 2
    drain = {"kind": "node_drain", "request": "2", "peer": "p", "draining": True}
    machine.apply(2, 1, json.dumps(drain).encode())
    assert (machine.nodes["p"].level, machine.nodes["p"].draining) == (2, True)
    machine.apply(3, 1, json.dumps({**node, "request": "3"}).encode())
    assert machine.nodes["p"].level == 0, "registered by a leader of a version that does not know"
    assert b"level" not in machine.snapshot(), "as the version before wrote it"


def looked_through(machine: MetaMachine) -> tuple[object, ...]:
    """The answers of the indexes, by a walk over all streams."""
    every, nodes = machine.all_assignments(), machine.nodes.keys()
    by_peer = {peer: [a for a in every if peer in a.peers] for peer in ("n1", "n2", "n3", "n4")}
    misplaced = [a for a in every if len(a.peers) < a.replicas or not nodes >= set(a.peers)]
    return by_peer, misplaced, [a for a in every if a.config.get(RESTORING)]


peers = st.lists(st.sampled_from(["n1", "n2", "n3", "n4"]), min_size=1, max_size=3, unique=True)
moves = st.tuples(
    st.sampled_from(["create", "restored", "delete", "peers", "node", "remove", "replace"]),
    st.sampled_from(["S", "T", "U"]),
    peers,
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(moves, max_size=30))
def test_the_indexes_are_those_of_a_walk_over_all_streams(steps: list[tuple[str, str, list[str], bool]]) -> None:
    driver = Driver()
    for what, name, listed, restoring in steps:
        known = driver.machine.assignment("A", name)
        gid = known.gid if known is not None else 0
        asset = {"account": "A", "name": name}
        if what == "create":
            settings_ = config(name, num_replicas=3) | ({RESTORING: True} if restoring else {})
            body = {"account": "A", "config": settings_, "peers": listed, "leader": listed[0], "created": 1}
            driver.apply("stream_create", **body, limits=NO_LIMITS)
        elif what in {"restored", "delete"}:
            driver.apply(f"stream_{what}", **asset, gid=gid)
        elif what == "peers":
            driver.apply("stream_peers", **asset, gid=gid, peers=[5, *listed] if restoring else listed)
        elif what == "node":
            driver.apply("node", peer=listed[0], name=name, tags=[], jetstream=True)
        elif what == "remove":
            driver.apply("node_remove", peer=listed[0], name=name)
        else:
            driver.apply("node_replace", peer=listed[0], by=listed[-1])
        machine = driver.machine
        by_peer = {peer: machine.assigned_to(peer) for peer in ("n1", "n2", "n3", "n4")}
        assert (by_peer, machine.misplaced, machine.restoring) == looked_through(machine)
        for there in (machine.nodes.keys(), set(listed)):
            assert machine.without(there) == {a.gid for a in machine.all_assignments() if there.isdisjoint(a.peers)}
        assert all(machine.replicas_on(peer) == len(found) for peer, found in by_peer.items())
    again = MetaMachine()
    again.restore(driver.machine.snapshot())
    assert looked_through(again) == looked_through(driver.machine)
    assert (again.misplaced, again.restoring) == (driver.machine.misplaced, driver.machine.restoring)


def test_usage_counts_bytes_once_and_by_replicas(driver: Driver) -> None:
    driver.create("S", num_replicas=3, max_bytes=10)
    driver.create("T", num_replicas=3, max_bytes=5, storage="memory")
    driver.create("U", num_replicas=1, max_bytes=7)
    driver.create("V", account="B", num_replicas=1, max_bytes=100)
    assert driver.machine.usage("A") == {1: (1, 0, 7), 3: (2, 5, 10)}
    driver.apply("stream_delete", account="A", name="U")
    assert driver.machine.usage("A") == {3: (2, 5, 10)} and driver.machine.usage("C") == {}
