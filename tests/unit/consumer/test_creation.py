"""Decisions of CREATE in apply: texts and figures seen on nats-server."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.consumer.state import creation
from jetcluster.errors import ApiError
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import CommandError, UnknownCommandError
from tests.unit.consumer.replica_rig import SECOND, T0, Node


def code(result: Any) -> int:
    assert isinstance(result, ApiError), result
    return result.err_code


def test_actions(n: Node) -> None:
    assert code(n.create(action="update")) == 10149
    assert n.create(action="create") == 1
    assert n.create(action="create") == 0
    assert code(n.create(action="create", description="x")) == 10148
    assert n.create(action="", description="x") == 1
    assert n.create(action="update", description="y") == 1
    assert n.create(action="update", description="y") == 0
    assert n.state().rules.config["description"] == "y"
    assert n.create("D") == 2


def test_metadata_of_the_server_makes_no_difference(n: Node) -> None:
    n.create(metadata={"_nats.ver": "1", "mine": "x"})
    assert n.create(action="create", metadata={"_nats.ver": "2", "mine": "x"}) == 0
    assert code(n.create(action="create", metadata={"mine": "y"})) == 10148


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"deliver_policy": "new"}, "deliver policy"),
        ({"mem_storage": True}, "storage type"),
        ({"direct": True}, "direct"),
        ({"sourcing": True}, "sourcing"),
        ({"opt_start_seq": 3}, "start sequence"),
        ({"opt_start_time_ns": 3}, "start time"),
        ({"ack_policy": "all"}, "ack policy"),
        ({"replay_policy": "original"}, "replay policy"),
        ({"idle_heartbeat": SECOND}, "heart beats"),
        ({"flow_control": True}, "flow control"),
        ({"max_waiting": 20}, "max waiting"),
        ({"deliver_policy": "new", "ack_policy": "all", "max_waiting": 20}, "deliver policy"),
    ],
)
def test_what_an_update_must_not_change(fields: dict[str, Any], what: str, n: Node) -> None:
    n.create()
    result = n.create(**fields)
    assert (code(result), result.code, result.description) == (10012, 500, f"{what} can not be updated")
    assert "mem_storage" not in n.state().rules.config and n.state().rules.deliver_policy == "all"


def test_pull_stays_pull_and_push_stays_push(n: Node) -> None:
    n.create()
    n.create("P", deliver_subject="d", max_waiting=0)
    result = n.create(deliver_subject="d")
    assert (result.err_code, result.description) == (10012, "can not update pull consumer to push based")
    result = n.create("P")
    assert (result.err_code, result.description) == (10012, "can not update push consumer to pull based")
    assert n.create("P", deliver_subject="e", max_waiting=0) == 2


def test_backoff_against_max_deliver(n: Node) -> None:
    n.create(max_deliver=3)
    assert code(n.create(max_deliver=2, backoff=[1, 2, 3])) == 10116
    assert n.create(max_deliver=3, backoff=[1, 2, 3]) == 1


def test_an_update_keeps_the_pause(n: Node) -> None:
    n.create(pause_until="2099-01-01T00:00:00Z", pause_until_ns=T0 * 2)
    assert n.create(pause_until="2098-01-01T00:00:00Z", pause_until_ns=T0 + 5) == 0
    assert n.create(description="x") == 1
    assert n.state().rules.pause_until == T0 * 2 and n.state().rules.config["description"] == "x"


def test_a_retry_has_the_first_outcome(n: Node) -> None:
    assert n.create(request="r1", action="create") == 1
    assert n.create(request="r1", action="create") == 1
    assert code(n.create(request="r2", action="create", description="x")) == 10148
    assert n.create(request="r3", description="x") == 1
    n.restart()
    assert n.create(request="r3", description="x") == 1
    assert n.create(request="r4", description="x") == 0


def test_replicas() -> None:
    n = Node({"num_replicas": 3})
    assert code(n.create(num_replicas=5)) == 10126
    assert n.create(num_replicas=1) == 1
    assert code(n.create(num_replicas=4)) == 10126
    n = Node({"num_replicas": 3, "retention": "interest"})
    assert code(n.create(num_replicas=1)) == 10134
    assert n.create(num_replicas=3) == 1 and n.create("D") == 2


def test_max_consumers() -> None:
    n = Node({"max_consumers": 2})
    n.create("A")
    n.create("M", direct=True)  # of a mirror: does not count
    assert n.create("B") == 3
    assert code(n.create("C")) == 10026
    assert n.create("A") == 0
    assert n.create("N", direct=True) == 4
    assert n.delete("A") == 1 and n.create("C") == 5


def test_the_accounts_bound_counts_too() -> None:
    n = Node({"max_consumers": 5})
    body = {"config": {}, "action": "", "created": 0, "owner": "p", "request": "", "max_consumers": 1}
    assert n.extended(commands.CONSUMER_CREATE, {"name": "A", **body}) == 1
    assert code(n.extended(commands.CONSUMER_CREATE, {"name": "B", **body})) == 10026


def test_work_queue() -> None:
    n = Node({"retention": "workqueue"})
    assert code(n.create("A", ack_policy="all", deliver_policy="new")) == 10098
    assert code(n.create("A", deliver_policy="new")) == 10101
    assert n.create("A", filter_subject="s.a") == 1
    assert code(n.create("B")) == 10099
    assert code(n.create("B", filter_subject="s.*")) == 10100
    assert code(n.create("B", filter_subject="s.*", deliver_policy="last")) == 10101
    assert n.create("B", filter_subjects=["s.b", "s.c"]) == 2
    assert code(n.create("B", filter_subject="s.>")) == 10100
    assert code(n.create("B")) == 10100
    assert n.create("B", filter_subject="s.d") == 2
    assert n.create("M", direct=True, ack_policy="none") == 3
    assert n.create("F", filter_subject="f", ack_policy="flow_control") == 4


def test_one_consumer_without_filter_takes_a_work_queue() -> None:
    n = Node({"retention": "workqueue"})
    assert n.create("A") == 1
    assert code(n.create("B", filter_subject="x")) == 10100


def starts(n: Node, **config: Any) -> tuple[int, int]:
    """(cursor, last_per_subject_upto) of a new consumer."""
    cid = n.create("new", **config)
    state = n.state("new")
    assert n.delete("new", cid) == 1
    assert state.floor_sseq == state.delivered_sseq and state.delivered_cseq == 0
    return state.delivered_sseq, state.last_per_subject_upto


def test_where_deliveries_start(n: Node) -> None:
    n.publish(b"s.a", b"s.a", b"s.a", b"s.b", b"s.b", b"s.a", b"s.a")
    at = n.now  # the first of these seven
    assert starts(n) == (0, 0)
    assert starts(n, deliver_policy="new") == (7, 0)
    assert starts(n, deliver_policy="last") == (6, 0)
    assert starts(n, deliver_policy="last", filter_subject="s.b") == (4, 0)
    assert starts(n, deliver_policy="last", filter_subjects=["s.a", "s.b"]) == (6, 0)
    assert starts(n, deliver_policy="last", filter_subject="s.z") == (0, 0)
    assert starts(n, deliver_policy="last_per_subject", filter_subject="s.*") == (4, 7)
    assert starts(n, deliver_policy="last_per_subject", filter_subject="s.z") == (6, 7)
    assert starts(n, deliver_policy="by_start_sequence", opt_start_seq=3) == (2, 0)
    assert starts(n, deliver_policy="by_start_sequence", opt_start_seq=100) == (99, 0)
    assert starts(n, deliver_policy="by_start_time", opt_start_time_ns=1) == (0, 0)
    assert starts(n, deliver_policy="by_start_time", opt_start_time_ns=at + 3) == (3, 0)
    assert starts(n, deliver_policy="by_start_time", opt_start_time_ns=10 * T0) == (7, 0)


@pytest.mark.parametrize("policy", ["all", "new", "last", "last_per_subject"])
def test_where_deliveries_start_in_an_empty_stream(policy: str, n: Node) -> None:
    assert starts(n, deliver_policy=policy)[0] == 0
    n.publish(b"a", b"a")
    n.apply(commands.encode_purge(n.now))
    assert starts(n, deliver_policy=policy)[0] == 2
    assert starts(n, deliver_policy="by_start_sequence", opt_start_seq=1)[0] == 2


def test_last_per_subject_of_one_message_per_subject_is_all() -> None:
    n = Node({"max_msgs_per_subject": 1})
    n.publish(b"a", b"b")
    assert starts(n, deliver_policy="last_per_subject", filter_subject=">") == (0, 0)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"name": 1}', b"\xff", b'{"name":"C","config":[],"action":"","created":1,"owner":"",'
             b'"request":""}', b'{"name":"C","config":{},"action":"","created":-1,"owner":"","request":""}']
)  # fmt: skip
def test_a_body_of_another_shape_is_no_command(body: bytes) -> None:
    with pytest.raises(CommandError) as raised:
        creation.decode(body)
    assert type(raised.value) is CommandError


def test_a_field_that_a_later_version_adds_stops_the_replica() -> None:
    body = b'{"name":"C","config":{},"action":"","created":1,"owner":"","request":"","more":1}'
    with pytest.raises(UnknownCommandError, match="more"):
        creation.decode(body)
