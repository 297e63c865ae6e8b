"""/subsz of a real server with real connections, and subscriptions as rows of pages."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.budget import at_once
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import ROWS_PER_STEP
from jetcluster.monitor.subsz import detail, lists, portions
from jetcluster.server.accounts.subscription import ClientSubscription
from jetcluster.server.server import Server
from tests.unit.monitor.wire import Wire


async def test_subsz(server: Server, source: NodeSource) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1", b"SUB foo.* q 2", b"SUB > 3", b"PUB foo 0\r\n", b"PUB foo 0\r\n")
    found = source.page("subsz", {"subs": "1"})
    assert (found["num_subscriptions"], found["total"], found["num_inserts"], found["num_removes"]) == (3, 3, 3, 0)
    assert [entry["subject"] for entry in found["subscriptions_list"]].count("foo.*") == 1
    assert found["num_matches"] == 2
    assert found["cache_hit_rate"] == 0.5
    assert (found["max_fanout"], found["avg_fanout"]) == (2, 2.0)
    tested = source.page("subsz", {"subs": "1", "test": "foo.x"})
    assert sorted(entry["subject"] for entry in tested["subscriptions_list"]) == [">", "foo.*"]
    paged = source.page("subsz", {"subs": "1", "limit": "1", "offset": "2"})
    assert (len(paged["subscriptions_list"]), paged["total"]) == (1, 3)
    assert source.page("subsz", {"acc": "nobody", "subs": "1"})["total"] == source.page("subsz", {})["total"] == 0
    await wire.close()


def subscription(subject: bytes, queue: bytes | None = None, most: int = 0, delivered: int = 0) -> ClientSubscription:
    found: Any = ClientSubscription.__new__(ClientSubscription)
    found.subject, found.queue, found.sid = subject, queue, b"7"
    found.max, found.delivered = most, delivered

    class Owner:
        cid = 5

    found.owner = Owner()
    return found  # type: ignore[no-any-return]


def test_a_row_says_only_what_there_is() -> None:
    assert detail(subscription(b"a.*", delivered=3)) == {"subject": "a.*", "sid": "7", "msgs": 3, "cid": 5}
    assert detail(subscription(b"a", b"q", most=9), account="A") == {
        "account": "A", "account_tag": "A", "subject": "a", "qgroup": "q", "sid": "7", "msgs": 0, "max": 9, "cid": 5,
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, ROWS_PER_STEP, 2 * ROWS_PER_STEP + 1])
def test_long_lists_are_made_in_steps(count: int) -> None:
    some = [subscription(b"s.%d" % n) for n in range(count)]
    subjects = [f"s.{n}" for n in range(count)]
    assert at_once(lists(some, detailed=False)) == {"subscriptions_list": subjects}
    rows = at_once(lists(some, detailed=True))["subscriptions_list_detail"]
    assert [row["subject"] for row in rows] == subjects
    assert sum(1 for _ in lists(some, detailed=True)) == len(list(portions(some))) == -(-count // ROWS_PER_STEP)


def test_without_subscriptions_there_is_no_list() -> None:
    assert at_once(lists([], detailed=True)) == {}
