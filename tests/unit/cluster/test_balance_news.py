"""A move for balance is told (cluster/balance_news.py)."""

from __future__ import annotations

from typing import Any

from jetcluster.cluster.balance_news import BalanceMove
from jetcluster.meta.state import Assignment
from jetcluster.model.advisory import Event
from testkit.twins.log import ListLog

STREAM = Assignment.from_dict(
    {
        "account": "APP", "name": "S", "gid": 7, "peers": ["a"], "leader_hint": "a", "created_ns": 1, "revision": 1,
        "config": {"name": "S", "num_replicas": 1, "storage": "file", "max_bytes": -1},
    }
)  # fmt: skip


class Ears:
    system_account = "$SYS"

    def __init__(self) -> None:
        self.told: list[tuple[str, Event]] = []

    def tell(self, account: str, event: Event) -> None:
        self.told.append((account, event))


def test_a_move_is_told_to_the_log_and_to_both_accounts() -> None:
    log, ears = ListLog(), Ears()
    events: Any = ears
    before, after = ({"count": 3, "weight": 300}, {"count": 1, "weight": 100}), ({"count": 2, "weight": 200},) * 2
    BalanceMove("consumer", STREAM, "c", "n1", "n2", "because", before, after).tell(log, events)
    (line,) = log.lines
    assert line[:2] == ("info", "for balance a consumer goes to another server")
    assert line[2] == {
        "account": "APP", "stream": "S", "consumer": "c", "source": "n1", "target": "n2", "reason": "because"
    }  # fmt: skip
    (account, event), (system, copy) = ears.told
    assert (account, system) == ("APP", "$SYS")
    assert event.subject == copy.subject == b"$JS.EVENT.ADVISORY.STREAM.BALANCED.S"
    assert event.fields == {
        "stream": "S", "kind": "consumer", "from": "n1", "to": "n2", "why": "because", "consumer": "c",
        "before": {"n1": before[0], "n2": before[1]}, "after": {"n1": after[0], "n2": after[1]},
    }  # fmt: skip
    assert BalanceMove("leader", STREAM, "", "n1", "n2", "because", before, after).to_dict() == {
        "account": "APP", "stream": "S", "kind": "leader", "from": "n1", "to": "n2", "why": "because"
    }  # fmt: skip
    assert copy.fields == {"account": "APP", **event.fields}
