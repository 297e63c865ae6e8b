from __future__ import annotations

from typing import Any

import pytest

from jetcluster.consumer.info import consumer_info, num_pending
from jetcluster.consumer.state import turn
from jetcluster.errors import ApiError
from jetcluster.model import times
from jetcluster.model.order_per_key import KeySharing
from jetcluster.model.times import rfc3339
from jetcluster.stream.log import commands
from tests.unit.consumer.replica_rig import SECOND, Node


def info(n: Node, **known: Any) -> dict[str, Any]:
    return consumer_info("S", n.state(), n.store, n.now, n.machine.rules, **known)


def text(ns: int) -> str:
    return times.rfc3339(ns)


def test_a_fresh_consumer(n: Node) -> None:
    n.publish(b"a", b"a")
    n.create(durable_name="C")
    created = n.now
    n.now += SECOND
    found = info(n)
    assert list(found) == ["stream_name", "name", "created", "config", "delivered", "ack_floor", "num_ack_pending",
                           "num_redelivered", "num_waiting", "num_pending", "ts"]  # fmt: skip
    assert (found["stream_name"], found["name"]) == ("S", "C")
    assert (found["created"], found["ts"]) == (text(created), text(n.now))
    assert found["config"] is n.state().rules.config
    assert found["delivered"] == found["ack_floor"] == {"consumer_seq": 0, "stream_seq": 0}
    assert found["num_pending"] == 2


def test_counters_and_times(n: Node) -> None:
    n.publish(*[b"a"] * 5)
    n.create()
    n.deliver(1, 2, 3)
    n.now += SECOND
    n.op(turn.REDELIVER, [2])
    n.now += SECOND
    n.ack(1)
    found = info(n, num_waiting=7, push_bound=True, cluster={"name": "c"})
    assert found["delivered"] == {"consumer_seq": 4, "stream_seq": 3, "last_active": text(n.now - SECOND)}
    assert found["ack_floor"] == {"consumer_seq": 1, "stream_seq": 1, "last_active": text(n.now)}
    assert [found[f"num_{what}"] for what in ("ack_pending", "redelivered", "waiting", "pending")] == [2, 1, 7, 2]
    assert found["push_bound"] is True and found["cluster"] == {"name": "c"}


def test_redelivered_is_hidden_when_messages_are_delivered_once(n: Node) -> None:
    n.publish(b"a")
    n.create()
    n.deliver(1)
    n.op(turn.REDELIVER, [1])
    assert info(n)["num_redelivered"] == 1
    n.create(max_deliver=1)
    assert info(n)["num_redelivered"] == 0


def test_what_is_no_longer_stored_does_not_show(n: Node) -> None:
    n.publish(*[b"a"] * 5)
    n.create()
    n.deliver(1, 2, 3)
    n.configure({"max_msgs": 3})
    found = info(n)
    assert found["num_ack_pending"] == 1 and found["num_pending"] == 2
    assert found["ack_floor"] == {"consumer_seq": 2, "stream_seq": 2}


def test_after_a_purge(n: Node) -> None:
    """The figures of nats-server."""
    n.create()
    n.publish(*[b"a"] * 10)
    n.deliver(1, 2, 3, 4)
    n.ack(2)
    n.apply(commands.encode_purge(n.now))
    found = info(n)
    assert (found["delivered"]["consumer_seq"], found["delivered"]["stream_seq"]) == (4, 10)
    assert (found["ack_floor"]["consumer_seq"], found["ack_floor"]["stream_seq"]) == (4, 10)
    assert found["num_ack_pending"] == found["num_pending"] == 0


def test_a_filtered_purge_moves_nothing(n: Node) -> None:
    n.create()
    n.publish(b"a", b"b", b"b")
    n.apply(commands.encode_purge(n.now, filter=b"a"))
    assert n.floors() == (0, 0, 0, 0) and info(n)["num_pending"] == 2


def test_what_waits_for_its_key_is_pending_and_counted_apart(n: Node) -> None:
    n.create(max_ack_pending_per_subject=1)
    n.publish(b"a", b"a", b"b", b"a")
    assert info(n)["order_per_key"] == {
        "messages_waiting": 0,
        "keys_waiting": 0,
        "members": 0,
        "spilled": 0,
    }
    n.op(turn.DELIVER_SOME, ([1, 3], [2]))
    n.ack(1)
    found = consumer_info("S", n.state(), n.store, n.now, n.machine.rules, sharing=KeySharing(1, 2, 3))
    assert found["order_per_key"] == {"messages_waiting": 1, "keys_waiting": 1, "members": 2, "spilled": 3}
    assert found["num_ack_pending"] == 1 and found["num_pending"] == 2
    assert (found["ack_floor"]["consumer_seq"], found["ack_floor"]["stream_seq"]) == (1, 1)
    n.create()
    assert "order_per_key" in info(n)
    n.op(turn.RELEASE, [2])
    assert "order_per_key" not in info(n)


def test_dead_letters_that_wait(n: Node) -> None:
    n.create(max_deliver=1, dead_letter={"subject": "dead"})
    n.publish(b"a", b"a")
    assert info(n)["dead_letters"] == {"waiting": 0}
    n.deliver(1, 2)
    n.op(turn.BURY, [(2, 1, b""), (1, 1, b"")])
    at = rfc3339(n.state().letters.by_seq[2].time)
    assert info(n)["dead_letters"] == {"waiting": 2, "oldest": at}
    found = consumer_info("S", n.state(), n.store, n.now, n.machine.rules, letter_error="no")
    assert found["dead_letters"] == {"waiting": 2, "oldest": at, "last_error": "no"}
    n.state().rules.letters = None
    assert info(n)["dead_letters"]["waiting"] == 2, "a later version refuses the configuration"
    n.create()
    assert "dead_letters" not in info(n)


def test_pause(n: Node) -> None:
    n.create(pause_until="2099-01-01T00:00:00Z", pause_until_ns=n.now + 5)
    found = info(n)
    assert found["paused"] is True and found["pause_remaining"] == 5
    n.now += 5
    assert "paused" not in info(n) and "pause_remaining" not in info(n)


def test_priority_groups(n: Node) -> None:
    n.create(priority_policy="pinned_client", priority_groups=["g", "h"])
    n.op(turn.PIN, (b"h", b"someone"))
    assert info(n)["priority_groups"] == [
        {"group": "g", "pinned_ts": "0001-01-01T00:00:00Z"},
        {"group": "h", "pinned_client_id": "someone", "pinned_ts": text(n.now)},
    ]


def test_num_pending_per_filter_and_with_last_per_subject(n: Node) -> None:
    n.publish(b"s.a", b"s.b", b"s.a", b"t.a", b"s.b", b"t.a")
    n.create(deliver_policy="last_per_subject", filter_subjects=["s.*", "t.a"])
    assert num_pending(n.state(), n.store) == 3  # 3, 5, 6
    n.publish(b"s.a", b"s.a", b"u")
    assert num_pending(n.state(), n.store) == 5
    n.deliver(3, 5)
    assert num_pending(n.state(), n.store) == 3
    n.deliver(6, 7)
    assert num_pending(n.state(), n.store) == 1
    n.create("D", filter_subject="u")
    assert num_pending(n.state("D"), n.store) == 1


def test_what_last_per_subject_left_is_looked_for_again_only_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, n: Node
) -> None:
    n.publish(b"s.a", b"s.b", b"s.a", b"t.a", b"s.b", b"t.a")
    n.create(deliver_policy="last_per_subject", filter_subjects=["s.*", "t.a"])
    looks = []
    look = type(n.store).last_seqs_any

    def looked(store: Any, *given: Any) -> list[int]:
        looks.append(given)
        return look(store, *given)

    monkeypatch.setattr(type(n.store), "last_seqs_any", looked)
    assert [num_pending(n.state(), n.store) for _ in range(5)] == [3] * 5
    n.publish(b"s.a")
    assert num_pending(n.state(), n.store) == 4
    assert len(looks) == 1
    n.deliver(3)
    assert num_pending(n.state(), n.store) == 3
    n.apply(commands.encode_delete_msg(n.now, 5))  # s.b is 2 now, which was passed
    assert num_pending(n.state(), n.store) == 2
    n.create(deliver_policy="last_per_subject", filter_subjects=["s.*"])
    assert num_pending(n.state(), n.store) == 1


@pytest.mark.parametrize(
    ("asked", "of_stream", "retention", "shown"),
    [(3, 1, "limits", 1), (1, 3, "limits", 1), (0, 3, "limits", 0), (3, 3, "limits", 3), (3, 1, "workqueue", 1),
     (1, 3, "interest", 3), (0, 1, "interest", 0)],
)  # fmt: skip
def test_a_consumer_is_shown_with_as_many_replicas_as_its_stream_permits(
    asked: int, of_stream: int, retention: str, shown: int
) -> None:
    n = Node({"num_replicas": max(asked, 1), "retention": retention})
    n.create(durable_name="C", num_replicas=asked)
    n.configure({"num_replicas": of_stream, "retention": retention})
    assert info(n)["config"]["num_replicas"] == shown
    assert not isinstance(n.create(action="update", **info(n)["config"], description="edited"), ApiError)
