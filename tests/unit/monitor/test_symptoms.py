"""Symptoms (docs/symptoms) whose texts come of rules alone: findings, /healthz, and what a server says of itself."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from jetcluster.doctor.consumer_rules import look_at_consumer
from jetcluster.doctor.facts import ConsumerFacts, ServerFacts, StateFetch, StreamFacts
from jetcluster.doctor.server_rules import look_at_server
from jetcluster.doctor.stream_rules import look_at_stream
from jetcluster.health.memory import MemoryWatch
from jetcluster.health.node_health import LoopWatch
from testkit.twins.time import ManualTime
from tests.symptom_page import shown
from tests.unit.doctor.cases import consumer, replica, server, stream, upstream
from tests.unit.health.test_descriptors import Table
from tests.unit.health.test_memory import Machine
from tests.unit.monitor.jetstream_pages import health


def told(facts: ServerFacts | StreamFacts | ConsumerFacts) -> str:
    if isinstance(facts, ServerFacts):
        found = list(look_at_server(facts))
    else:
        found = list(look_at_stream(facts) if isinstance(facts, StreamFacts) else look_at_consumer(facts))
    return "\n".join(f"{one.code}  {one.what}\n{one.why}" for one in found)


def unhealthy(node: Any, **changed: Any) -> str:
    """The answer of /healthz when the replica of S has these attributes."""
    there = node.jetstream.jetstream.replicas[7]
    before = {name: getattr(there, name) for name in changed}
    for name, value in changed.items():
        setattr(there, name, value)
    text = str(health(node).body["error"])
    for name, value in before.items():
        setattr(there, name, value)
    assert health(node).status == 200
    return text


async def test_replicas_that_do_not_serve(node: Any) -> None:
    shown("a-replica-is-out-of-service", told(stream(rejected="differs")), unhealthy(node, rejected="differs"))
    dispute = told(stream(undecided=True))
    shown("replicas-differ-and-no-majority-agrees", dispute, unhealthy(node, disputed="differs"))
    shown("a-replica-has-stopped", told(stream(failed="boom")), unhealthy(node, failed="boom"))
    damage = told(stream(damaged="message 7"))
    shown("a-replica-has-damaged-data", damage, unhealthy(node, damaged="bad checksum"))
    shown("a-replica-cannot-be-started", told(stream(broken="no table")))
    shown("records-of-the-journal-were-lost", told(server(journal_losses=1)))
    group = node.jetstream.jetstream.replicas[7].group
    group.refused = "B lies"
    refusing = str(health(node).body["error"])
    group.refused = ""
    shown("a-replica-does-not-follow-its-leader", told(stream(refused="B lies")), refusing)


async def test_replicas_that_are_behind(node: Any) -> None:
    pull = StateFetch(300, 900, 10.0, "n1", stalled=False)
    fetching = told(stream(leading=False, leader="n2", replicas=(), catch_up=pull))
    shown("a-replica-is-behind", told(stream(replicas=replica(lag=1001))), fetching)
    waits = [unhealthy(node, installing=True)]
    group = node.jetstream.jetstream.replicas[7].group
    leader, group.leader = group.leader, None
    waits.append(str(health(node).body["error"]))
    group.leader = leader
    meta = node.jetstream.jetstream.meta
    there, meta.group = meta.group, None
    waits.append(str(health(node).body["error"]))
    meta.group = there
    shown("a-server-starts-slowly-or-its-pod-is-not-ready", *waits)
    assert health(node).status == 200
    shown("a-mirror-is-behind-its-upstream", told(stream(upstreams=upstream(lag=10_001))))


async def test_servers_that_leave(node: Any) -> None:
    node.server.state.lame_duck = True
    shown("a-server-goes-away-and-stays", health(node).body["error"])
    assert health(node, js_enabled_only="1").status == 200, "no probe may kill it"


def test_machines_that_are_short_of_something(tmp_path: Path) -> None:
    machine, table, loop = Machine(tmp_path), Table(200), LoopWatch()
    machine.limit(str(512 << 20))
    machine.resident(490 << 20)
    shown("memory-is-nearly-out", MemoryWatch(ManualTime(), machine.root).trouble())
    table.lowest = 160
    near = table.watch().trouble()
    table.error = errno.EMFILE
    shown("file-descriptors-run-out", near, table.watch().trouble())
    for _ in range(20):
        loop.beat(0.1, 1.0)
    shown("the-event-loop-stood-still", loop.trouble)


def test_consumers_that_nobody_serves_or_asks() -> None:
    shown("a-consumer-delivers-nothing-to-a-reader-that-waits", told(consumer(waiting=1)))
    shown("messages-wait-and-nobody-asks", told(consumer(oldest=301.0)))


def test_dead_letters_that_no_stream_takes() -> None:
    errors = ("no stream takes their subject", "maximum messages exceeded")
    texts = [told(consumer(letters=2, letters_oldest=90.0, letters_error=error)) for error in errors]
    shown("dead-letters-wait", *texts)
