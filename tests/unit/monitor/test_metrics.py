"""/metrics: Prometheus reads it, the names are those of prometheus-nats-exporter, and our own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families as parse

from jetcluster.clock import SystemClock
from jetcluster.consumer.state.letters import Letter, WaitingLetters
from jetcluster.health.node_health import Aspect
from jetcluster.latency import Latency
from jetcluster.model.order_per_key import KeySharing
from jetcluster.model.retention_guard import GuardRules
from jetcluster.model.times import SECOND
from jetcluster.monitor import metrics
from jetcluster.monitor.metrics import Metrics
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import QueryError
from jetcluster.server.server import Server
from tests.unit.monitor import fake_node
from tests.unit.monitor.wire import Wire

EXPORTER = Path(__file__).parent / "exporter-names.json"
"""Name -> labels, as prometheus-nats-exporter (its main branch of June 2026) made them of a three-node cluster of
jetcluster with `-varz -connz -routez -subz -leafz -accstatz -accountz -gatewayz -healthz -jsz=all`."""


def instrumented(engine: Any, clock: SystemClock) -> Any:
    """The twin, with what only metrics look at."""
    timed = Latency()
    timed.observe(0.002)
    journal = SimpleNamespace(
        free=1 << 30, disk_size=1 << 40,
        sync_latency=timed, full=False,
        counters=SimpleNamespace(batches=3, bytes=400, full_episodes=0, shortages=0, read_failures=0, pins_given_up=0),
    )  # fmt: skip
    engine.network.raft = SimpleNamespace(
        health=engine.network.raft.health, peers=engine.network.raft.peers,
        journal=journal, commit_latency=timed, apply_latency=timed, losses=[], full=False,
        counters=SimpleNamespace(campaigns=1, stopped_groups=0),
    )  # fmt: skip
    engine.runtime.read_latency = dict.fromkeys(("leader", "follower", "mirror"), timed)
    engine.services.settings.batch_quota = SimpleNamespace(open=2, fast_open=3, staged_bytes=77)
    engine.network.catchup.missing = lambda gid, peer: None
    for replica in engine.replicas.values():
        replica.reads = SimpleNamespace(answers=SimpleNamespace(answered=12, pages=SimpleNamespace(streaming=1)))
        replica.assignment.config["max_msgs"] = -1
    return engine


@pytest.fixture
def node(server: Server) -> Any:
    clock = SystemClock()
    found = fake_node.node(server, clock, instrumented(fake_node.engine(clock), clock))
    found.jetstream.apis["$G"].dropped = 0
    counters = dict.fromkeys(("slow", "stale", "dropped_msgs", "refused", "links_up", "links_down"), 0)
    found.jetstream.mesh.counters = SimpleNamespace(**counters)
    stats = SimpleNamespace(
        rid=3, did_solicit=True, configured=True, ip="127.0.0.1", port=6222, started=clock.monotonic() - 61,
        last_activity=clock.monotonic() - 1, rtt=0.00079, in_msgs=1, out_msgs=2, in_bytes=3, out_bytes=4,
    )  # fmt: skip
    found.jetstream.mesh.links = {"BBBBBBBB": fake_node.FakeLink("BBBBBBBB", "n2", stats)}
    return found


async def scrape(node: Any, **query: str) -> dict[str, Metric]:
    body = await Metrics(node, NodeSource(node)).scrape(query)
    return {family.name: family for family in parse(body.decode())}


def labels_by_name(families: dict[str, Metric]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in families.values():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def test_all_names_and_labels_of_the_exporter(node: Any, server: Server) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1")
    source = NodeSource(node)
    for page in ("/varz", "/routez", "/subsz", "/metrics"):
        source.count_request(page)
    body = await Metrics(node, source).scrape({})
    ours = labels_by_name({family.name: family for family in parse(body.decode())})
    for name, labels in json.loads(EXPORTER.read_text()).items():
        if name.startswith("jetstream_consumer_"):
            continue  # the twin has no consumers; tests/interop/test_cli_server.py asks a real server
        assert name in ours, name
        assert ours[name] == set(labels), name
    await wire.close()


async def test_values(node: Any, server: Server) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1", b"PUB foo 2\r\nhi")
    link = node.jetstream.mesh.links["BBBBBBBB"]
    server.accounts["$G"].peers.set_interest(link, b"foo", b"q", 2)
    server.accounts["APP"].peers.set_interest(link, b"bar", None, 1)
    found = await scrape(node)

    samples = [sample for family in found.values() for sample in family.samples]

    def value(name: str, **labels: str) -> float:
        matching = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
        assert len(matching) == 1, (name, matching)
        return float(matching[0])

    assert value("gnatsd_varz_connections", server_id="n1") == value("gnatsd_connz_num_connections") == 1
    assert value("gnatsd_varz_in_client_bytes") == 2
    assert value("gnatsd_varz_start") == server.start_ns // 1_000_000
    assert value("gnatsd_healthz_status") == 0
    assert value("gnatsd_routez_route_subscriptions", rid="3") == 2
    assert value("gnatsd_accstatz_received_bytes", account="$G") == 2
    assert value("jetstream_stream_total_messages", stream_name="S", is_stream_leader="true") == 5
    assert value("jetcluster_replica_lag_entries", stream="S", replica="n2") == 0
    assert value("jetcluster_atomic_batches_open") == 2
    assert value("jetcluster_fast_batches_open") == 3
    assert value("jetcluster_direct_get_batches_streaming") == 1
    assert value("jetcluster_damage_found_total") == 3
    assert value("jetcluster_balance_leaders_total") == 2 and value("jetcluster_balance_replicas_total") == 0
    assert value("jetcluster_direct_gets_total", stream="S") == 12
    assert value("jetcluster_fsync_seconds_count") == 1
    assert value("jetcluster_direct_get_seconds_bucket", role="mirror", le="0.0025") == 1
    assert value("jetcluster_direct_get_seconds_bucket", role="mirror", le="0.001") == 0
    await wire.close()


async def test_connections_on_demand(node: Any, server: Server) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1", b"PUB foo 2\r\nhi")
    samples = (await scrape(node))["gnatsd_connz_pending_bytes"].samples
    assert [set(sample.labels) for sample in samples] == [{"server_id"}]
    found = await scrape(node, connections="1")
    (one,) = [s for s in found["gnatsd_connz_in_bytes"].samples if "cid" in s.labels]
    assert (one.value, one.labels["name"], one.labels["account"]) == (2, "a", "$G")
    await wire.close()


async def test_another_prefix(node: Any) -> None:
    found = await scrape(node, prefix="nats", consumers="0")
    assert {"nats_varz_cpu", "nats_server_total_streams", "nats_stream_last_seq", "jetcluster_info"} <= found.keys()
    assert not any(name.startswith(("gnatsd_", "jetstream_")) for name in found)
    for bad in ("9x", "a-b", "a b", "ä"):
        with pytest.raises(QueryError):
            await scrape(node, prefix=bad)


async def test_without_jetstream(server: Server) -> None:
    found = await scrape(fake_node.node(server, SystemClock()))
    assert found["jetstream_server_jetstream_disabled"].samples[0].value == 1
    assert "jetcluster_fsync_seconds" not in found


async def test_a_sick_node(node: Any) -> None:
    replica = node.jetstream.jetstream.replicas[7]
    replica.failed = "boom"
    found = await scrape(node)
    assert found["gnatsd_healthz_status"].samples[0].value == 1
    assert found["jetcluster_replicas_failed"].samples[0].value == 1
    assert not any(sample.value for sample in found["jetcluster_node_trouble"].samples)
    health = node.jetstream.jetstream.network.raft.health
    health.watch(Aspect.STORE, lambda: "EIO")
    health.look()
    trouble = {s.labels["aspect"]: s.value for s in (await scrape(node))["jetcluster_node_trouble"].samples}
    assert trouble == {aspect.value: float(aspect is Aspect.STORE) for aspect in Aspect}
    assert "jetstream_stream_last_seq" not in found


async def test_upstreams(node: Any) -> None:
    links = node.jetstream.jetstream.replicas[7].mirrors.links
    links.info = lambda **_: {
        "sources": [
            {"name": "A", "lag": 4, "lag_seconds": 1.5, "silent_seconds": 0.5},
            {"name": "B", "lag": 0, "lag_seconds": 0, "silent_seconds": 9.0},
        ]
    }
    found = await scrape(node)
    assert [(s.labels["upstream"], s.value) for s in found["jetcluster_upstream_lag_messages"].samples] == [
        ("A", 4),
        ("B", 0),
    ]
    assert [s.value for s in found["jetcluster_upstream_silent_seconds"].samples] == [0.5, 9.0]


async def test_dead_letters_that_wait_at_their_owner(node: Any) -> None:
    engine = node.jetstream.jetstream
    given_up = engine.runtime.clock.time_ns() - 90 * SECOND
    for name, wish, oldest in (("with", object(), given_up), ("none", object(), 0), ("other", None, 0)):
        waiting = WaitingLetters()
        if oldest:
            waiting.add(4, Letter(1, 5, oldest))
            waiting.add(5, Letter(1, 5, oldest + SECOND))
        rules, unacked = SimpleNamespace(letters=wish, keys=None), SimpleNamespace(held=0)
        state = SimpleNamespace(name=name, rules=rules, letters=waiting, unacked=unacked)
        hosted = SimpleNamespace(owner=SimpleNamespace(state=state))
        engine.replicas[7].consumers.running[name] = hosted
    found = await scrape(node)
    labels = {"account": "$G", "stream": "S"}
    samples = found["jetcluster_dead_letters_waiting"].samples
    assert [(s.labels, s.value) for s in samples] == [
        ({**labels, "consumer": "with"}, 2), ({**labels, "consumer": "none"}, 0)
    ]  # fmt: skip
    oldest_of, none = (s.value for s in found["jetcluster_dead_letters_oldest_seconds"].samples)
    assert 90 <= oldest_of < 100 and none == 0


async def test_keys_that_wait_at_their_owner(node: Any) -> None:
    """One sample for each consumer, and none with a key's name; also while messages wait of one without the option."""
    running = node.jetstream.jetstream.replicas[7].consumers.running
    for name, wish, held in (("with", object(), 5), ("calm", object(), 0), ("left", None, 2), ("other", None, 0)):
        rules = SimpleNamespace(letters=None, keys=wish)
        state = SimpleNamespace(name=name, rules=rules, letters=WaitingLetters(), unacked=SimpleNamespace(held=held))
        sharing = KeySharing(3, 2, 7) if name == "with" else KeySharing()
        running[name] = SimpleNamespace(owner=SimpleNamespace(state=state, key_sharing=sharing))
    found = await scrape(node)
    wanted = {"keys_waiting": 3, "key_messages_waiting": 5, "key_members": 2, "keys_spilled": 7}
    for metric, value in wanted.items():
        samples = found[f"jetcluster_{metric}"].samples
        assert [s.labels for s in samples] == [
            {"account": "$G", "stream": "S", "consumer": name} for name in ("with", "calm", "left")
        ]
        assert [s.value for s in samples] == [value, 0, 2 if metric == "key_messages_waiting" else 0]


async def test_survivors_tell_of_a_dead_server(node: Any) -> None:
    """It has no samples of its own any more: sums over servers would only get smaller."""
    network = node.jetstream.jetstream.network
    for gone in ((), ("BBBBBBBB",)):  # linked still, but silent
        network.raft.peers.silent = set(gone)
        found = await scrape(node)
        assert found["jetcluster_peers_expected"].samples[0].value == 2
        assert found["jetcluster_peers_seen"].samples[0].value == 2 - len(gone)
        seen = {s.labels["peer"]: s.value for s in found["jetcluster_peer_seen"].samples}
        assert seen == {"n2": float(not gone), "n3": 1.0}
    network.raft.peers.silent = set()
    del network.mesh.peers["CCCCCCCC"]
    assert (await scrape(node))["jetcluster_peers_seen"].samples[0].value == 1


async def test_streams_of_which_no_server_tells_are_counted(node: Any) -> None:
    engine = node.jetstream.jetstream
    streams = {"S": ("AAAAAAAA",), "GONE": ("former",), "AWAY": ("CCCCCCCC",), "PAIR": ("BBBBBBBB", "CCCCCCCC")}
    engine.meta.machine = fake_node.placed({"AAAAAAAA": "n1", "BBBBBBBB": "n2", "CCCCCCCC": "n3"}, **streams)
    names = "jetcluster_streams_lost", "jetcluster_streams_away"

    async def counted() -> list[float]:
        found = await scrape(node)
        return [found[name].samples[0].value for name in names]

    assert await counted() == [1, 0]
    del engine.network.mesh.peers["CCCCCCCC"]
    assert await counted() == [1, 1]
    del engine.network.mesh.peers["BBBBBBBB"]
    assert await counted() == [1, 2]


async def test_a_retention_guard_has_metrics_where_there_is_one(node: Any) -> None:
    names = {"waiting_messages", "waiting_seconds", "refuses", "overrun_messages"}
    series = {f"jetstream_stream_guard_{name}" for name in names}
    assert not series & set(labels_by_name(await scrape(node)))
    guard = SimpleNamespace(
        rules=SimpleNamespace(guard=GuardRules("c")), oldest=1, waiting=7, refuses_now=lambda now: "full",
        overrun=SimpleNamespace(messages=3),
    )  # fmt: skip
    node.jetstream.jetstream.replicas[7].machine.guard = guard
    found = await scrape(node)
    assert series <= set(labels_by_name(found))
    values = {sample.name: sample.value for name in found for sample in found[name].samples if sample.name in series}
    assert values["jetstream_stream_guard_waiting_messages"] == 7 and values["jetstream_stream_guard_refuses"] == 1
    assert values["jetstream_stream_guard_overrun_messages"] == 3


async def test_the_first_panel_counts_the_dead() -> None:
    (panel, *_) = [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]
    (target,) = panel["targets"]
    assert {"jetcluster_peers_expected", "jetcluster_peers_seen", "gnatsd_healthz_status"} <= set(
        re.findall(r"\b\w+_\w+\b", target["expr"])
    )


async def test_every_metric_of_the_dashboard_and_the_alerts_exists(node: Any) -> None:
    links = node.jetstream.jetstream.replicas[7].mirrors.links
    links.info = lambda **_: {"mirror": {"name": "A", "lag": 4, "lag_seconds": 1.5, "silent_seconds": 0.5}}
    exported = set(labels_by_name(await scrape(node)))
    exported |= set(json.loads(EXPORTER.read_text()))
    used = dashboard_metrics()
    assert len(used) > 20
    assert used <= exported, sorted(used - exported)


DASHBOARD = Path(metrics.__file__).parents[2] / "deploy/grafana/jetcluster.json"


def dashboard_metrics() -> set[str]:
    """Metric names in the queries of the dashboards in deploy/grafana, and of the alert rules."""
    top = Path(metrics.__file__).parents[2]
    rules = (top / "deploy/prometheus/alerts.yaml").read_text()
    names: set[str] = set(re.findall(r"\b(?:gnatsd|jetstream|jetcluster)_[a-z0-9_]+", rules))
    for path in (top / "deploy/grafana").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                names.update(re.findall(r"\b(?:gnatsd|jetstream|jetcluster)_[a-z0-9_]+", target["expr"]))
    return names
