"""For each code: facts that make the finding, and facts just on the other side that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from jetcluster.doctor.cluster_rules import look_at_cluster, look_at_lost, look_at_orphan
from jetcluster.doctor.config_rules import look_at_account, look_at_config
from jetcluster.doctor.consumer_rules import look_at_consumer
from jetcluster.doctor.facts import (
    Absent,
    AccountFacts,
    Certificate,
    ClusterFacts,
    ConfigFacts,
    ConsumerFacts,
    GuardFacts,
    MachineFacts,
    OrphanFacts,
    RefusalFacts,
    Remote,
    ReplicaFacts,
    ReservationFacts,
    ReservingStream,
    ServerFacts,
    StateFetch,
    StreamFacts,
    Unanswered,
    UpstreamFacts,
)
from jetcluster.doctor.finding import Finding
from jetcluster.doctor.machine_rules import look_at_machine
from jetcluster.doctor.server_rules import look_at_server
from jetcluster.doctor.stream_rules import look_at_refusal, look_at_stream

GIB = 1 << 30
NAMES = ("n1", "n2", "n3")


def server(name: str = "n1", **changed: Any) -> ServerFacts:
    """One of three that are well."""
    config = ConfigFacts(jetstream=True, clustered=True)
    linked = tuple(other for other in NAMES if other != name)
    usual = ServerFacts(
        name, peer=name, version="0.1", level=2, uptime=1000.0, jetstream=True, clustered=True, meta_leader="n1",
        members=NAMES, quorum=2, linked=linked, leads=4, config=config,
    )  # fmt: skip
    return replace(usual, **changed)


def cluster(*changed: dict[str, Any], unanswered: tuple[Unanswered, ...] = (), there: int = 3) -> ClusterFacts:
    """Servers n1, n2, ..., the first of them with `changed[0]`, and so on."""
    given = [*changed, *[{}] * 3]
    servers = tuple(server(name, **given[place]) for place, name in enumerate(NAMES[:there]))
    return ClusterFacts("n1", servers, unanswered)


def stream(**changed: Any) -> StreamFacts:
    """One of three replicas, at its leader, that is well."""
    others = tuple(ReplicaFacts(name, linked=True, voter=True, lag=0, silent=0.1) for name in ("n2", "n3"))
    usual = StreamFacts(
        "n1", "A", "S", leader="n1", leading=True, wanted=3, present=3, quorum=2, replicas=others, machines=NAMES,
        messages=100, bytes=1000, consumers=1,
    )  # fmt: skip
    return replace(usual, **changed)


def replica(**changed: Any) -> tuple[ReplicaFacts, ...]:
    usual = ReplicaFacts("n2", linked=True, voter=True, lag=0, silent=0.1)
    return (usual._replace(**changed),)


def upstream(**changed: Any) -> tuple[UpstreamFacts, ...]:
    return (UpstreamFacts("U", 0, 0.5, "", mirror=True)._replace(**changed),)


def consumer(**changed: Any) -> ConsumerFacts:
    """One with messages that wait for long, and nobody who asks."""
    return replace(ConsumerFacts("n1", "A", "S", "C", pending=5, oldest=100.0, ack_wait=30.0), **changed)


def config(**changed: Any) -> ConfigFacts:
    return replace(ConfigFacts(jetstream=True, clustered=True, open_to="0.0.0.0", cluster_open_to="0.0.0.0"), **changed)


def account(**changed: Any) -> AccountFacts:
    return replace(AccountFacts("n1", "A"), **changed)


def reserving(reserved: int, limit: int = 100) -> tuple[ReservationFacts, ...]:
    return (ReservationFacts("max_file", limit, reserved, (ReservingStream("S", reserved // 3, 3),)),)


def machine(**changed: Any) -> MachineFacts:
    usual = MachineFacts("n1", clock_synchronized=True, clock_source="the kernel", store="/data")
    return replace(usual, **changed)


def trouble(aspect: str) -> ServerFacts:
    return server(troubles=((aspect, "it is so", 3.0),))


def of_config(facts: ConfigFacts) -> Iterable[Finding]:
    return look_at_config("n1", facts)


class Case(NamedTuple):
    """`look(fires)` has a finding of `code`, `look(not_so)` none of that code."""

    code: str
    look: Callable[[Any], Iterable[Finding]]
    fires: Any
    not_so: Any


def _servers() -> list[Case]:
    aspects = ("journal", "space", "store", "data", "descriptors", "clock", "loop", "memory")
    troubles = [
        Case(f"JC{102 + place}", look_at_server, trouble(aspect), trouble(aspects[place - 1]))
        for place, aspect in enumerate(aspects)
    ]
    hub = Remote("A", "hub:7422", connected=False)
    rows: list[tuple[str, Any, Any]] = [
        ("JC110", server(removed="it was removed"), server()),
        ("JC111", server(refused="it lies"), server()),
        ("JC112", server(lame_duck=True), server()),
        ("JC113", server(skew=-1.5), server(skew=0.9)),
        ("JC113", server(skew=1.5), server(skew=9.0, troubles=(("clock", "9 s off", 1.0),))),
        ("JC114", server(memory=90, memory_limit=100), server(memory=80, memory_limit=100)),
        ("JC114", server(memory=90, memory_limit=100), server(memory=90)),
        ("JC115", server(descriptors=900, descriptor_limit=1000), server(descriptors=800, descriptor_limit=1000)),
        ("JC116", server(disk_free=9, disk_size=100), server(disk_free=11, disk_size=100)),
        ("JC117", server(storage=90 * GIB, max_storage=100 * GIB), server(storage=GIB, max_storage=100 * GIB)),
        ("JC117", server(stored_memory=90, max_memory=100), server(stored_memory=90)),
        ("JC118", server(reserved_storage=90, max_storage=100), server(reserved_storage=80, max_storage=100)),
        ("JC118", server(reserved_memory=90, max_memory=100), server(reserved_memory=85, max_memory=100)),
        ("JC119", server(journal_losses=1), server()),
        ("JC120", server(unassigned=2), server()),
        ("JC121", server(api_waiting=201), server(api_waiting=200)),
        ("JC122", server(compiled=False, loops="plain Python"), server()),
        ("JC123", server(certificates=(Certificate("clients", -5.0),)), server(certificates=(Certificate("c", 5.0),))),
        ("JC124", server(certificates=(Certificate("c", 9e4),)), server(certificates=(Certificate("c", 5e6),))),
        ("JC125", server(leaf_remotes=(hub,)), server(leaf_remotes=(hub._replace(connected=True),))),
        ("JC125", server(leaf_remotes=(hub,)), server(leaf_remotes=(hub,), uptime=5.0)),
        ("JC126", trouble("deleted"), trouble("journal")),
        ("JC127", server(refused_reload=("c.conf:1:0: no", 60.0)), server()),
    ]  # fmt: skip
    return [*troubles, *(Case(code, look_at_server, fires, not_so) for code, fires, not_so in rows)]


def _cluster() -> list[Case]:
    gone = {"absent": (Absent("n3", 12.0),), "linked": ("n2",)}
    gone_too = {"absent": (Absent("n3", -1.0),), "linked": ("n1",)}
    known = {**gone, "left_out": ("n3",)}
    no_streams = {"jetstream": False, "linked": (), "members": ()}
    asleep = Unanswered("n3", "timed out")
    alone = {"meta_leader": "", "absent": (Absent("n2", 1.0), Absent("n3", 1.0)), "linked": ()}
    pair = {"members": ("n1", "n2"), "linked": ("n2",)}
    no_keeper = {"config": ConfigFacts(sync_interval=2.0)}
    rows: list[tuple[str, Any, Any]] = [
        ("JC101", cluster(gone, gone_too, there=2), cluster()),
        ("JC101", cluster(gone, gone_too, there=2), cluster({"absent": (Absent("n3", 12.0),), "linked": ("n2",)})),
        ("JC101", cluster(gone, gone_too, there=2), cluster(known, known, there=2)),
        ("JC201", cluster(alone, there=1), cluster(gone, gone_too, there=2)),
        ("JC202", cluster(gone, gone_too, there=2), cluster()),
        ("JC202", cluster(gone, gone_too, there=2), cluster(alone, there=1)),
        ("JC202", cluster(gone, gone_too, there=2), cluster(unanswered=(asleep,), there=2)),
        ("JC203", cluster({"leads": 40}), cluster({"leads": 12})),
        ("JC203", cluster({"leads": 40}), cluster({"leads": 40}, {"uptime": 10.0})),
        ("JC203", cluster({"leads": 40}), cluster({"leads": 40}, {"troubles": (("loop", "x", 1.0),)})),
        ("JC204", cluster({"version": "0.2"}), cluster()),
        ("JC205", cluster({"level": 1}), cluster()),
        ("JC206", cluster({"config": ConfigFacts(jetstream=True, sync_interval=2.0)}), cluster()),
        ("JC206", cluster({"config": ConfigFacts(jetstream=True, sync_interval=2.0)}), cluster(no_keeper)),
        ("JC207", cluster(pair, {**pair, "linked": ("n1",)}, there=2), cluster()),
        ("JC208", cluster({"linked": ("n2",)}, {}, {"linked": ("n2",)}), cluster(gone, gone_too, there=2)),
        ("JC208", cluster({"linked": ("n2",)}, {}, {"linked": ("n2",)}), cluster({"linked": ("n2",)}, {}, no_streams)),
        ("JC209", cluster({"left_out": ("n4",)}), cluster()),
        ("JC210", cluster(unanswered=(asleep,), there=2), cluster()),
    ]  # fmt: skip
    single = ClusterFacts("n1", (server(clustered=False, linked=(), members=(), absent=(Absent("x", 1.0),)),))
    rows += [("JC101", cluster(gone, gone_too, there=2), single)]
    return [Case(code, look_at_cluster, fires, not_so) for code, fires, not_so in rows]


def _streams() -> list[Case]:
    follower = {"leading": False, "replicas": (), "leader": "n2"}
    away = replica(linked=False, voter=False)
    pull = StateFetch(300, 900, 10.0, "n1", stalled=False)
    rows: list[tuple[str, Any, Any]] = [
        ("JC301", stream(leading=False, leader="", present=1), stream(**follower)),
        ("JC301", stream(leading=False, leader=""), stream(leading=False, leader="", catch_up=pull)),
        ("JC301", stream(leading=False, leader=""), stream(leading=False, leader="", broken="damaged")),
        ("JC302", stream(replicas=replica(linked=False), present=2), stream()),
        ("JC302", stream(replicas=replica(linked=False), present=2), stream(replicas=away)),
        ("JC303", stream(replicas=replica(lag=1001)), stream(replicas=replica(lag=1000))),
        ("JC303", stream(replicas=replica(lag=1, silent=11.0)), stream(replicas=replica(lag=1001, linked=False))),
        ("JC304", stream(**follower, catch_up=pull), stream(**follower)),
        ("JC304", stream(**follower, catch_up=pull._replace(stalled=True)), stream(**follower)),
        ("JC304", stream(**follower, catch_up=pull._replace(done=0)), stream(**follower)),
        ("JC305", stream(**follower, unapplied=1001), stream(**follower, unapplied=1000)),
        ("JC306", stream(failed="it raised"), stream()),
        ("JC307", stream(damaged="message 7"), stream(failed="it raised")),
        ("JC308", stream(rejected="differs"), stream()),
        ("JC309", stream(undecided=True), stream()),
        ("JC309", stream(disputed="differs from the leader"), stream()),
        ("JC310", stream(refused="n2 lies"), stream()),
        ("JC311", stream(broken="no table"), stream()),
        ("JC312", stream(wanted=1, replicas=(), machines=("n1",)), stream()),
        ("JC312", stream(wanted=1, replicas=(), machines=("n1",)), stream(wanted=1, clustered=False)),
        ("JC313", stream(machines=("m", "m", "n3")), stream()),
        ("JC314", stream(max_bytes=1100, discard_new=True), stream(max_bytes=2000, discard_new=True)),
        ("JC314", stream(max_messages=110, discard_new=True), stream(max_messages=110)),
        ("JC315", stream(max_messages=110), stream(max_messages=-1)),
        ("JC316", stream(consumers=9, max_consumers=10), stream(consumers=8, max_consumers=10)),
        ("JC317", stream(upstreams=upstream(silent=11.0)), stream(upstreams=upstream())),
        ("JC317", stream(upstreams=upstream(silent=-1.0, error="no responders")), stream(upstreams=upstream())),
        ("JC318", stream(upstreams=upstream(lag=10_001, mirror=False)), stream(upstreams=upstream(lag=10_000))),
        ("JC319", stream(consumers=0, retention="workqueue"), stream(retention="workqueue")),
        ("JC319", stream(consumers=0, retention="workqueue"), stream(consumers=0, retention="workqueue", messages=0)),
        ("JC320", stream(consumers=0, retention="interest"), stream(consumers=0)),
        ("JC322", stream(guard=GuardFacts("c", True, 9, "maximum bytes")), stream(guard=GuardFacts("c", True, 9, ""))),
        ("JC323", stream(guard=GuardFacts("c", False, 0, "")), stream(guard=GuardFacts("c", True, 0, ""))),
    ]  # fmt: skip
    refusal = RefusalFacts("n1", "A", "S", 10005, "no suitable peers for placement", ("n1: it is offline",), 12.0)
    refused = Case("JC321", lambda facts: look_at_refusal(facts) if facts is not None else (), refusal, None)
    orphan = Case(
        "JC301", lambda facts: look_at_orphan(facts) if facts is not None else (), OrphanFacts("A", "S", ("n3",)), None
    )
    lost = Case("JC324", lambda facts: look_at_lost(*facts) if facts is not None else (), ("A", "S"), None)
    return [*(Case(code, look_at_stream, fires, not_so) for code, fires, not_so in rows), refused, orphan, lost]


def _consumers() -> list[Case]:
    rows: list[tuple[str, Any, Any]] = [
        ("JC401", consumer(waiting=1), consumer(waiting=1, oldest=10.0)),
        ("JC401", consumer(waiting=1, delivered=50.0), consumer(waiting=1, delivered=5.0)),
        ("JC401", consumer(push=True, bound=True), consumer(push=True)),
        ("JC401", consumer(waiting=1), consumer(waiting=1, pending=0)),
        ("JC401", consumer(waiting=1), consumer(waiting=1, paused=9.0)),
        ("JC401", consumer(waiting=1), consumer(waiting=1, ack_pending=10, max_ack_pending=10)),
        ("JC401", consumer(waiting=1), consumer(waiting=1, withheld="replay")),
        ("JC401", consumer(push=True, bound=True), consumer(push=True, bound=True, withheld="rate")),
        ("JC401", consumer(waiting=1, in_flight=5), consumer(waiting=1, withheld="priority")),
        ("JC401", consumer(waiting=1), consumer(waiting=1, withheld="acks")),
        ("JC401", consumer(waiting=1), consumer(waiting=1, withheld="unread")),
        ("JC401", consumer(waiting=1), consumer(waiting=1, withheld="keys")),
        ("JC402", consumer(ack_pending=10, max_ack_pending=10), consumer(ack_pending=9, max_ack_pending=10)),
        ("JC402", consumer(ack_pending=10, max_ack_pending=10), consumer(ack_pending=9, max_ack_pending=9, pending=0)),
        ("JC402", consumer(ack_pending=10, max_ack_pending=10, acked=31.0), consumer(ack_pending=10)),
        ("JC402", consumer(ack_pending=9, max_ack_pending=9), consumer(ack_pending=9, max_ack_pending=9, acked=29.0)),
        ("JC402", consumer(ack_pending=3, withheld="keys"), consumer(ack_pending=3, withheld="keys", acked=29.0)),
        ("JC403", consumer(paused=60.0), consumer()),
        ("JC404", consumer(ack_pending=10, redelivered=10), consumer(ack_pending=11, redelivered=10)),
        ("JC404", consumer(ack_pending=10, redelivered=10, acked=3.0), consumer(ack_pending=9, redelivered=9)),
        ("JC405", consumer(oldest=301.0), consumer(oldest=299.0)),
        ("JC405", consumer(oldest=301.0, delivered=400.0), consumer(oldest=301.0, delivered=200.0)),
        ("JC405", consumer(oldest=301.0), consumer(oldest=301.0, push=True)),
        ("JC406", consumer(exhausted=1), consumer()),
        ("JC407", consumer(oldest=301.0, push=True, target="d"), consumer(oldest=299.0, push=True)),
        ("JC407", consumer(oldest=301.0, push=True, target="d"), consumer(oldest=301.0, push=True, bound=True)),
        ("JC408", consumer(waiting=1, withheld="unread"), consumer(waiting=1, withheld="replay")),
        ("JC408", consumer(push=True, bound=True, withheld="unconfirmed"), consumer(push=True, bound=True)),
        ("JC409", consumer(letters=3, letters_oldest=61.0), consumer(letters=3, letters_oldest=59.0)),
        ("JC409", consumer(letters=1, letters_oldest=61.0, letters_error="full"), consumer(letters_oldest=61.0)),
    ]  # fmt: skip
    return [Case(code, look_at_consumer, fires, not_so) for code, fires, not_so in rows]


def _configurations() -> list[Case]:
    bare = {"routes_secret": False, "routes_tls": False}
    rows: list[tuple[str, Any, Any]] = [
        ("JC501", config(**bare, trusted_network=True), config(**bare)),
        ("JC501", config(**bare, trusted_network=True), config(routes_tls=False, trusted_network=True)),
        ("JC501", config(**bare, trusted_network=True), config(**bare, trusted_network=True, cluster_open_to="")),
        ("JC502", config(users=False), config(users=False, open_to="")),
        ("JC502", config(users=False), config()),
        ("JC503", config(tls=False), config()),
        ("JC503", config(tls=False), config(tls=False, open_to="")),
        ("JC504", config(console=True, http_open_to="0.0.0.0"), config(console=True)),
        ("JC504", config(console=True, http_open_to="0.0.0.0"), config(http_open_to="0.0.0.0")),
        ("JC505", config(temporary_store=True), config(temporary_store=True, jetstream=False)),
        ("JC506", config(sync_interval=120.0), config()),
        ("JC507", config(inert=("gateway",)), config()),
        ("JC508", config(system_user=False), config()),
        ("JC508", config(system_user=False), config(system_user=False, users=False)),
    ]
    accounts: list[tuple[str, Any, Any]] = [
        ("JC509", account(storage=90, max_storage=100), account(storage=90)),
        ("JC509", account(memory=90, max_memory=100), account(memory=80, max_memory=100)),
        ("JC509", account(streams=9, max_streams=10), account(streams=8, max_streams=10)),
        ("JC512", account(reservations=reserving(90)), account(reservations=reserving(80))),
        ("JC512", account(reservations=reserving(90)), account(reservations=reserving(90, -1))),
    ]
    machines: list[tuple[str, Any, Any]] = [
        ("JC510", machine(problem="line 3: no such key"), machine()),
        ("JC511", machine(warnings=("a doubtful value",)), machine()),
        ("JC601", machine(descriptor_limit=1024), machine(descriptor_limit=65_536)),
        ("JC602", machine(somaxconn=128), machine(somaxconn=4096)),
        ("JC603", machine(clock_synchronized=False), machine()),
        ("JC604", machine(clock_synchronized=None), machine(clock_synchronized=False)),
        ("JC605", machine(sync_seconds=(0.001, 0.03, 0.04)), machine(sync_seconds=(0.001, 0.002, 0.5))),
        ("JC606", machine(store_error="permission denied"), machine()),
        ("JC607", machine(disk_free=5, disk_size=100), machine(disk_free=50, disk_size=100)),
        ("JC608", machine(memory_limit=64 << 20), machine(memory_limit=1 << 30)),
        ("JC609", machine(taken_ports=(("clients", 4222, True),)), machine()),
        ("JC609", machine(taken_ports=(("clients", 4222, False),)), machine()),
        ("JC610", machine(unresolved=(("n9", "unknown"),)), machine()),
        ("JC611", machine(unreachable=(("n9:6222", "refused"),)), machine()),
    ]
    return [
        *(Case(code, of_config, fires, not_so) for code, fires, not_so in rows),
        *(Case(code, look_at_account, fires, not_so) for code, fires, not_so in accounts),
        *(Case(code, look_at_machine, fires, not_so) for code, fires, not_so in machines),
    ]


CASES = [*_servers(), *_cluster(), *_streams(), *_consumers(), *_configurations()]
