"""Monitoring and the system account against nats-server and its tools.

The same configuration runs on nats-server and on ours, and everything that tools read is compared key by key: names and
JSON types. What differs on purpose is in MISSING and EXTRA, and nowhere else. Then the `nats` command line tool works
with the cluster as an operator does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testkit.client import Client
from testkit.harness import Node, ProcessCluster, eventually, find_server
from tests.interop.test_nats_cli import Cli
from tests.unit.monitor.test_metrics import EXPORTER

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.thorough]

CONFIG = """
server_tags: ["az:1", "ssd"]
accounts {
  SYS: { users: [ { user: sys, password: pwd } ] }
  APP: { jetstream: enabled, users: [ { user: app, password: pwd } ] }
}
system_account: SYS
no_auth_user: app
"""
SYSTEM = {"user": "sys", "pass": "pwd"}

PAGES = (
    "varz", "connz", "connz?auth=1&subs=detail", "connz?subs=1", "connz?state=closed", "routez", "routez?subs=detail",
    "leafz", "gatewayz", "subsz", "subsz?subs=1", "accountz", "accountz?acc=APP", "accstatz", "accstatz?unused=1",
    "jsz", "jsz?accounts=1&streams=1&consumers=1&config=1&raft=1", "raftz", "raftz?acc=APP", "healthz",
    "healthz?details=1", "healthz?details=1&js-enabled-only=true", "healthz?details=1&js-server-only=true",
    "healthz?details=1&account=APP", "healthz?details=1&account=nobody", "healthz?details=1&account=APP&stream=S",
    "healthz?details=1&account=APP&stream=nope", "healthz?details=1&account=APP&stream=S&consumer=nope",
    "healthz?details=1&account=APP&stream=S&consumer=C",
    "healthz?account=APP&stream=nope", "healthz?account=APP&stream=S&consumer=nope", "ipqueuesz",
)  # fmt: skip
REFUSED = (
    "connz?sort=nope",
    "connz?limit=x",
    "subsz?test=a..b",
    "jsz?consumers=x",
    "accountz?acc=nobody",
    "connz?state=x",
)
REQUESTS = (
    "SERVER.PING", "SERVER.PING.IDZ", "SERVER.PING.VARZ", "SERVER.PING.HEALTHZ", "SERVER.PING.JSZ", "SERVER.PING.RAFTZ",
    "ACCOUNT.APP.INFO", "ACCOUNT.APP.CONNZ", "ACCOUNT.APP.JSZ", "ACCOUNT.APP.STATZ", "ACCOUNT.APP.CONNS",
    "ACCOUNT.APP.LEAFZ", "ACCOUNT.APP.SUBSZ", "ACCOUNT.PING.STATZ", "USER.INFO",
)  # fmt: skip

MISSING = {
    "compress_ok": "compression of nats-server's meta snapshots",
    "jetstream.config.strict": "shown when it is configured: unknown keys are not refused by default",
    "config.strict": "as above",
    "snapshot.last_time": "the meta group's state goes to disk with everything else, not as snapshots",
    "snapshot.last_duration": "as above",
    ".rtt": "known after the first ping, at 2 s",
    "routes[].account": "one link per peer carries all accounts, of which nats-server tells none either",
    "consumer_detail[].cluster": "consumers live in their stream's group, which is shown once",
    "wal.consumer_count": "nats-server's log is a stream, ours is not",
    "wal.first_ts": "log entries carry no time",
    "wal.last_ts": "as above",
    "_meta_.leader_since": "shown for streams only",
    "name_tag": "shown where /connz is asked for auth",
}
"""Parts of the path of what nats-server shows and we do not, and why."""
EXTRA = {
    "sync_always": "nats-server shows it when configured; it is our default",
    "scrub": "ours",
    "disk": "ours",
    ".jetcluster": "ours: our version, and what is compiled",
    "hashes": "ours",
    "object_uploads": "ours",
    "durable_seq": "ours: how far the log is fsynced",
    "s_leader": "streams_leader, consumers_leader: depends on who leads",
    "leader_since": "as above",
    "_nats.": "metadata that nats-server leaves out of consumers in /jsz",
    "http_req_stats": "nats-server does not count all pages",
    "slow_consumer_stats": "nats-server leaves zeros out here",
    "stale_connection": "as above",
    "stalled_clients": "as above",
    "consumer_detail[].": "push_bound, pause and the like depend on who owns the consumer",
    "is_system": "of the system account, which has no imports",
    "last_seen": "depends on who leads",
    "last_replicated_index": "as above",
    "replicas[]": "depends on who leads",
    ".lag": "depends on the moment",
    ".rtt": "depends on the moment",
}


class Both:
    """The same cluster twice, and a client on each first node that stays."""

    def __init__(self, ours: ProcessCluster, theirs: ProcessCluster | None) -> None:
        self.ours, self.theirs = ours, theirs


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    ours = ProcessCluster(3, "jetcluster", config=CONFIG, monitor=True)
    theirs = ProcessCluster(3, "nats-server", config=CONFIG, monitor=True) if find_server("nats-server") else None
    clusters = [cluster for cluster in (ours, theirs) if cluster is not None]
    failures = request.session.testsfailed

    async def start() -> None:
        await asyncio.gather(*(cluster.__aenter__() for cluster in clusters))
        for cluster in clusters:
            await fill(cluster)

    asyncio.run(start())
    yield Both(ours, theirs)
    for cluster in clusters:
        cluster.failed = request.session.testsfailed > failures
        asyncio.run(cluster.__aexit__(None))


@pytest.fixture
def pair(both: Both) -> tuple[ProcessCluster, ProcessCluster]:
    if both.theirs is None:
        pytest.skip("nats-server is not on this machine: run `make tools` (needs Go and its module proxy)")
    return both.ours, both.theirs


async def fill(cluster: ProcessCluster) -> None:
    async with await cluster[0].connect() as client:
        await client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 3})
        consumer = {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit", "num_replicas": 3}}
        await client.api("CONSUMER.CREATE.S.C", consumer)
        for _ in range(3):
            await client.request("s.a", b"hello")
    await cluster.wait_current("S")


# ---- shapes


def shape(value: Any, path: str = "") -> dict[str, str]:
    """Path -> JSON type, lists as `[]`, names of groups and peers as `*`."""
    if isinstance(value, dict):
        found = {} if value else {path: "object"}
        for key, item in value.items():
            name = "*" if path.endswith(".peers") or "-R3F-" in key else key
            found |= shape(item, f"{path}.{name}")
        return found
    if isinstance(value, list):
        found = {f"{path}[]": "list"}
        for item in value:
            found |= shape(item, f"{path}[]")
        return found
    kinds = {bool: "bool", int: "number", float: "number", str: "text", type(None): "null"}
    return {path: kinds[type(value)]}


def compare(what: str, ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    found = [
        f"{what}: missing {key}" for key in theirs.keys() - ours.keys() if not any(part in key for part in MISSING)
    ]
    found += [f"{what}: extra {key}" for key in ours.keys() - theirs.keys() if not any(part in key for part in EXTRA)]
    return found + [
        f"{what}: {key} is a {ours[key]}, not a {theirs[key]}"
        for key in ours.keys() & theirs.keys()
        if ours[key] != theirs[key]
    ]


def fetch(node: Node, path: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/{path}", timeout=10) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


async def test_pages_are_those_of_nats_server(pair: tuple[ProcessCluster, ProcessCluster]) -> None:
    """The union over the three nodes: leaders show more than followers."""
    problems: list[str] = []
    holders = [await cluster[0].connect() for cluster in pair]
    for holder in holders:
        holder.subscribe("q.*", lambda msg: None, queue="w")
        await holder.flush()
    for path in PAGES:
        shapes: list[dict[str, str]] = []
        statuses = []
        for cluster in pair:
            merged: dict[str, str] = {}
            for node in cluster.nodes:
                status, kind, body = await asyncio.to_thread(fetch, node, path)
                assert kind == "application/json", path
                merged |= shape(json.loads(body))
            shapes.append(merged)
            statuses.append(status)
        assert statuses[0] == statuses[1], path
        problems += compare(path, *shapes)
    assert not problems, "\n".join(sorted(problems))
    for path in REFUSED:
        answers = [await asyncio.to_thread(fetch, cluster[0], path) for cluster in pair]
        assert answers[0][0] == answers[1][0] == 400, (path, answers)
        assert answers[0][2].split(":")[0] == answers[1][2].split(":")[0], (path, answers)
    for holder in holders:
        holder.close()


_inboxes = itertools.count()


async def replies(node: Node, subject: str, body: object = None) -> list[dict[str, Any]]:
    """Replies of all three servers; fewer when some are silent for 0.5 s."""
    found: list[dict[str, Any]] = []
    async with await Client.connect(node.url, **SYSTEM) as client:
        inbox = f"answers.{next(_inboxes)}"
        client.subscribe(inbox, lambda msg: found.append(msg.json()))
        client.publish(subject, json.dumps(body).encode() if body is not None else b"", inbox.encode())
        await client.flush()
        seen, patience = 0, 50
        while len(found) < 3 and patience:
            patience = 50 if len(found) > seen else patience - 1
            seen = len(found)
            await asyncio.sleep(0.01)
    return found


async def test_system_requests_are_answered_like_those_of_nats_server(
    pair: tuple[ProcessCluster, ProcessCluster],
) -> None:
    problems: list[str] = []
    holders = [await cluster[1].connect() for cluster in pair]
    asked = [replies(cluster[0], f"$SYS.REQ.{kind}") for kind in REQUESTS for cluster in pair]
    all_answers = await asyncio.gather(*asked)
    for at, kind in enumerate(REQUESTS):
        answers = all_answers[2 * at : 2 * at + 2]
        assert len(answers[0]) == len(answers[1]) > 0, (kind, [len(answer) for answer in answers])
        shapes: list[dict[str, str]] = [{}, {}]
        for side, answer in enumerate(answers):
            for one in answer:
                shapes[side] |= shape(one)
        problems += compare(kind, *shapes)
    assert not problems, "\n".join(sorted(problems))
    for body in ({"server_name": "n2", "exact_match": True}, {"tags": ["nope"]}, {"leader_only": True}):
        counts = await asyncio.gather(*(replies(cluster[0], "$SYS.REQ.SERVER.PING.JSZ", body) for cluster in pair))
        assert len(counts[0]) == len(counts[1]), body
    for holder in holders:
        holder.close()


async def test_events_of_other_nodes(both: Both) -> None:
    nodes = both.ours
    events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
    async with await Client.connect(nodes[0].url, **SYSTEM) as system:
        system.subscribe("$SYS.ACCOUNT.APP.*", lambda msg: events.put_nowait((msg.subject.decode(), msg.json())))
        await system.flush()
        await asyncio.sleep(0.2)  # the interest crosses to the other nodes
        client = await nodes[2].connect()
        subject, event = await asyncio.wait_for(events.get(), 10)
        assert (subject, event["server"]["name"]) == ("$SYS.ACCOUNT.APP.CONNECT", "n3")
        client.close()
        subject, event = await asyncio.wait_for(events.get(), 10)
        assert (subject, event["reason"], event["client"]["user"]) == (
            "$SYS.ACCOUNT.APP.DISCONNECT",
            "Client Closed",
            "app",
        )


async def test_metrics_have_the_names_and_labels_of_the_exporter(both: Both) -> None:
    """exporter-names.json has the names and labels that the exporter made of such a cluster; there are no leaf links
    here."""
    async with await both.ours[0].connect() as client:
        pulled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.subscribe("pulled", pulled.set_result)
        client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b"", b"pulled")
        message = await asyncio.wait_for(pulled, 10)
        await client.request(message.reply.decode(), b"+ACK")

    async def told() -> bool:
        """Delivery and ack are known to every replica."""
        for node in both.ours.nodes:
            page = await node.monitor("jsz?consumers=1")
            (shown,) = page["account_details"][0]["stream_detail"][0]["consumer_detail"]
            if not all("last_active" in shown[key] for key in ("delivered", "ack_floor")):
                return False
        return True

    await eventually(told, 10, "not every replica knows of the ack", every=0.1)
    for node in both.ours.nodes:
        status, _, body = await asyncio.to_thread(fetch, node, "metrics")
        assert status == 200
        found: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(body):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        for name, labels in json.loads(EXPORTER.read_text()).items():
            assert found.get(name) == set(labels), name
        assert {"jetstream_consumer_last_delivery_seconds", "jetcluster_fsync_seconds_bucket"} <= found.keys()


# ---- the command line tool


READS = (
    ("server list 3", ["n1", "n2", "n3", "Cluster Overview"]),
    ("server ping 3", ["n1", "n2", "n3"]),
    ("server info n2", ["Server information for n2", "Connection Details", "JetStream:"]),
    ("server report connections", ["Connections per server"]),
    ("server report accounts", ["Accounts Overview"]),
    ("server report jetstream", ["JetStream Summary", "RAFT Meta Group Information", "yes"]),
    ("server report health", ["ok: 3 / err: 0"]),
    ("server report routes", ["Cluster Report"]),
    ("server report leafnodes", ["Leafnode Report"]),
    ("server report cpu", ["n1", "n3"]),
    ("server report mem", ["n1", "n3"]),
    ("server check connection --connect-warn 8s --connect-critical 9s", ["OK Connection"]),
    ("server check server --name n1", ["OK n1"]),
    ("server check meta --expect 3 --lag-critical 10 --seen-critical 10s", ["OK JetStream Meta Cluster"]),
    ("server request variables --name n1", ['"server_name":"n1"']),
    ("server request connections --sort subs --limit 2", ['"connections"']),
    ("server request jetstream --all", ['"stream_detail"', '"consumer_detail"']),
    ("server request jetstream --leader", ['"meta_cluster"']),
    ("server request jetstream-health", ['"status":"ok"']),
    ("server request raft", ['"_meta_"']),
    ("server request subscriptions --detail", ['"subscriptions_list"']),
    ("server request accounts --account APP", ['"account_name":"APP"']),
    ("server account info APP", ["JetStream: true", "$SYS.REQ.USER.INFO"]),
)
"""Commands of the system user, and what they print."""
APP_READS = (
    ("account info", ["APP", "JetStream Account Information"]),
    ("account report connections", ["NATS CLI"]),
    ("account report statistics", ["Server Statistics"]),
    ("stream report", ["Stream Report", "S"]),
    ("consumer report S", ["Consumer report for S"]),
    ("server check jetstream", ["OK JetStream"]),
    ("server check stream --stream S --peer-expect 3", ["OK S"]),
)


async def test_reports_of_the_tool(both: Both, tool: str) -> None:
    system, app = cli(both, tool, "sys"), cli(both, tool, "app")
    running = asyncio.Semaphore(6)  # most of their time is waiting for servers that may still answer

    async def run(user: Cli, command: str) -> str:
        async with running:
            return await user(*command.split())

    outputs = await asyncio.gather(
        *(run(system, command) for command, _ in READS), *(run(app, command) for command, _ in APP_READS)
    )
    for (command, wanted), output in zip((*READS, *APP_READS), outputs, strict=True):
        assert all(text in output for text in wanted), (command, output)


def cli(both: Both, tool: str, user: str) -> Cli:
    found = Cli(tool, both.ours.urls[0])
    found.base += ["--user", user, "--password", "pwd"]
    return found


async def test_commands_of_the_tool(both: Both, tool: str) -> None:
    system = cli(both, tool, "sys")
    info = json.loads(await system("server", "request", "variables", "--name", "n2"))
    server = info["server"]["id"]
    client = await both.ours[1].connect()
    clients = (await both.ours[1].monitor("connz?acc=APP"))["connections"]
    cid = max(one["cid"] for one in clients)
    await system("server", "request", "kick", str(cid), server)

    async def gone() -> bool:
        closed = (await both.ours[1].monitor("connz?state=closed"))["connections"]
        return any(one["cid"] == cid and one["reason"] == "Kicked" for one in closed)

    await eventually(gone, 10, "the client is still there")
    client.close()
    await system("server", "config", "reload", server, "--force")
    assert "Reload requested by the system account" in both.ours[1].log()
    assert "New leader elected" in await system("server", "cluster", "step-down")
    denied = cli(both, tool, "app")
    output = await denied("server", "list", "3", rc=1)
    assert "system privileges" in output
