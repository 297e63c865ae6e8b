"""The steps of the demo: what each does with the cluster, and what it has proved then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from jetcluster.cli.demo.copies import DemoError, Replica, check_copy, prove_alone, sequences
from jetcluster.cli.demo.orders import STREAM, make_orders
from jetcluster.cli.demo.publisher import PatientPublisher
from jetcluster.cli.local_cluster import LocalCluster, LocalNode
from jetcluster.client.connection import Connection
from jetcluster.client.servers import ServerOptions, ask
from jetcluster.errors import ApiError, PassingError

COUNT: Final = 4000
"""Orders; half of them before the kill."""
BUCKET: Final = "PRICES"
COPY: Final = "COPY"
CURRENT_SECONDS: Final = 20.0
WRONG_LAST_SEQUENCE: Final = 10071

Say = Callable[[str], object]
"""Shows a line below the step's title."""


class Demo:
    """The steps, in their order. Each raises DemoError for what must not be, and what its requests raise."""

    def __init__(self, cluster: LocalCluster, count: int = COUNT) -> None:
        self.cluster = cluster
        self.orders = make_orders(count)
        self._servers = ServerOptions(tuple(cluster.urls), name="jetcluster-demo")
        self._publisher: PatientPublisher | None = None
        self._killed: LocalNode | None = None

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

    def steps(self) -> list[tuple[str, Callable[[Say], None]]]:
        """(title, step) of each."""
        half = len(self.orders) // 2
        return [
            ("Three servers start on this machine", self.start),
            (f"{half:,} orders into a stream with three replicas", self.publish),
            (f"{half:,} more, and SIGKILL to the server that leads the stream", self.kill),
            ("The killed server starts again", self.start_again),
            ("Each server answers alone, the two others frozen", self.read),
            ("A key-value bucket", self.bucket),
            ("A mirror of the stream", self.mirror),
        ]

    def start(self, say: Say) -> None:
        self.cluster.start()
        self.cluster.wait_healthy()
        say(f"One cluster, and any client of NATS may connect: {', '.join(self.cluster.urls)}")

    def publish(self, say: Say) -> None:
        with self._connect() as connection:
            config = {"name": STREAM, "subjects": ["orders.>"], "num_replicas": 3, "allow_direct": True}
            connection.api(f"STREAM.CREATE.{STREAM}", config)
        first = self._leader().url  # the publisher's server is the one that is going to be killed
        urls = (first, *(url for url in self.cluster.urls if url != first))
        self._publisher = PatientPublisher(ServerOptions(urls, name="jetcluster-demo"), self.orders)
        began = time.monotonic()
        self._publisher.publish(range(len(self.orders) // 2))
        rate = len(self.orders) // 2 / (time.monotonic() - began)
        say(f"{rate:,.0f} a second. Each ack came when two of the three had the order on disk (fsync), not earlier.")

    def kill(self, say: Say) -> None:
        assert self._publisher is not None
        leader, killed_at = self._leader(), 0.0

        def kill() -> None:
            nonlocal killed_at
            assert leader.process is not None
            killed_at = time.monotonic()
            leader.process.kill()
            leader.process.wait()

        state = self._publisher
        state.publish(range(len(self.orders) // 2, len(self.orders)), kill)
        self._killed = leader
        new = self._leader()
        say(f"{leader.name} died with orders under way. {state.resumed - killed_at:.2f} s later came the next ack; "
            f"{new.name} leads.")  # fmt: skip
        say(f"{len(state.resent)} orders without an ack were sent again; {state.duplicates} of them were stored "
            "already, and are not there twice.")  # fmt: skip

    def start_again(self, say: Say) -> None:
        assert self._killed is not None
        began = time.monotonic()
        self.cluster.start_node(self._killed)
        self.cluster.wait_healthy()
        self._wait_current()
        say(f"{self._killed.name} was there and had caught up after {time.monotonic() - began:.1f} s.")

    def read(self, say: Say) -> None:
        expected = self._expected()
        replicas = [_replica(node) for node in self.cluster.nodes]
        for replica in replicas:
            others = [other for other in replicas if other is not replica]
            seconds = prove_alone(replica, others, STREAM, expected, lambda _count: None)
            rate = len(expected) / seconds
            say(f"{replica.name}: all {len(expected):,} acked orders, each exactly once ({rate:,.0f} reads a second).")

    def bucket(self, say: Say) -> None:
        config: dict[str, Any] = {
            "name": f"KV_{BUCKET}", "subjects": [f"$KV.{BUCKET}.>"], "num_replicas": 3, "max_msgs_per_subject": 5,
            "discard": "new", "allow_direct": True, "allow_rollup_hdrs": True, "deny_delete": True,
        }  # fmt: skip
        with self._connect() as connection:
            connection.api(f"STREAM.CREATE.KV_{BUCKET}", config)
            first = _put(connection, "lamp", b"19.90", 0)
            second = _put(connection, "lamp", b"17.50", first)
            try:
                _put(connection, "lamp", b"99.00", first)
            except ApiError as error:
                if error.err_code != WRONG_LAST_SEQUENCE:
                    raise
            else:
                raise DemoError("a price was overwritten by one who had not seen it")
        for node in self.cluster.nodes:
            with Connection([node.url]) as connection:
                _until_value(connection, node.name, second, b"17.50")
        say(f"lamp: 19.90 (revision {first}), then 17.50 (revision {second}), which every server says.")
        say(f"A second writer who had only seen revision {first} was refused: no update is lost.")

    def mirror(self, say: Say) -> None:
        expected = self._expected()
        with self._connect() as connection:
            config = {"name": COPY, "mirror": {"name": STREAM}, "num_replicas": 1, "allow_direct": True}
            connection.api(f"STREAM.CREATE.{COPY}", config)
            self._wait_for(COPY, lambda info: info["state"]["messages"] == len(expected))
            connection.api(f"STREAM.PURGE.{STREAM}")
            if left := connection.api(f"STREAM.INFO.{STREAM}")["state"]["messages"]:
                raise DemoError(f"{left} orders are left after a purge")
            check_copy(connection, COPY, COPY, expected, lambda _count: None)
        say(f"{COPY} has all {len(expected):,} orders under the same sequences, also after {STREAM} was purged.")

    # ---- parts

    def _expected(self) -> dict[int, bytes]:
        assert self._publisher is not None
        return sequences(self._publisher.seqs, [order.payload for order in self.orders])

    def _connect(self) -> Connection:
        return self._servers.connect()

    def _leader(self) -> LocalNode:
        def question(connection: Connection) -> LocalNode:
            info = connection.api(f"STREAM.INFO.{STREAM}", timeout=1.0)
            found = [node for node in self.cluster.nodes if node.name == info["cluster"].get("leader")]
            if not found or not found[0].is_running:
                raise PassingError(f"{STREAM} has no leader")
            return found[0]

        return ask(self._servers, question)

    def _wait_current(self) -> None:
        def current(info: dict[str, Any]) -> bool:
            replicas = info["cluster"].get("replicas") or []
            return len(replicas) == 2 and all(r["current"] and not r.get("lag") for r in replicas)

        self._wait_for(STREAM, current)

    def _wait_for(self, stream: str, found: Callable[[dict[str, Any]], bool]) -> None:
        give_up = time.monotonic() + CURRENT_SECONDS
        info: dict[str, Any] = {}
        while not info or not found(info):
            if time.monotonic() > give_up:
                raise DemoError(f"{stream} is not there after {CURRENT_SECONDS:.0f} s: {json.dumps(info)}")
            info = ask(self._servers, lambda connection: connection.api(f"STREAM.INFO.{stream}"))
            time.sleep(0.02)


def _replica(node: LocalNode) -> Replica:
    assert node.process is not None
    return Replica(node.name, node.url, node.process.pid)


def _put(connection: Connection, key: str, value: bytes, revision: int) -> int:
    """Writes a key whose last revision must be `revision`, and returns the new one. Raises ApiError."""
    headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
    reply = connection.request(f"$KV.{BUCKET}.{key}", value, headers)
    found = reply.json()
    if error := found.get("error"):
        raise ApiError(error["code"], error["err_code"], error["description"])
    return int(found["seq"])


def _until_value(connection: Connection, name: str, revision: int, value: bytes) -> None:
    """A replica may be some milliseconds behind the acks: what it says of the key is waited for, and must be right."""
    give_up = time.monotonic() + CURRENT_SECONDS
    while True:
        found = connection.request(f"$JS.API.DIRECT.GET.KV_{BUCKET}.$KV.{BUCKET}.lamp")
        if not found.status and int(found.get("Nats-Sequence") or 0) >= revision:
            break
        if time.monotonic() > give_up:
            raise DemoError(f"{name} does not have revision {revision}")
        time.sleep(0.02)
    if found.data != value:
        raise DemoError(f"{name} says {found.data!r} of revision {revision}")
