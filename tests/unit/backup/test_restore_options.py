"""The options of a restore; the making of streams is tested on clusters (tests/cluster/test_account_backup.py)."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.backup.point import Blob, RestorePoint, StreamPoint
from jetcluster.backup.restore_options import (
    RestoreOptions,
    RestoreRefusedError,
    expiring,
    loses,
    loses_at_once,
    same_config,
)
from jetcluster.model.times import rfc3339


def stream(name: str, **config: Any) -> StreamPoint:
    return StreamPoint(name, "then", {"name": name, **config}, {"messages": 1}, Blob.of(b""), ())


POINT = RestorePoint("20260101T000000Z", 1, 1, (stream("A"), stream("KV_a")))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"streams": ("A", "B")}, "no stream B"), ({"name": "C"}, "for one stream"),
        ({"streams": ("A", "KV_a"), "name": "C"}, "for one stream"), ({"streams": ("A",), "subjects": ("c",)}, "--as"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RestoreRefusedError, match=text):
        RestoreOptions(**options).check(POINT)
    RestoreOptions(streams=("A",), name="C", subjects=("c",)).check(POINT)


def test_the_configuration_is_the_backups_but_for_the_options() -> None:
    one = stream("A", subjects=["a"], max_age=5, max_msgs=9, max_bytes=7, num_replicas=3, max_msgs_per_subject=2)
    assert RestoreOptions().config(one) == one.config
    options = RestoreOptions(streams=("A",), name="B", subjects=("b", "c"), replicas=1, no_limits=True)
    assert options.config(one) == {
        "name": "B", "subjects": ["b", "c"], "max_age": 0, "max_msgs": -1, "max_bytes": -1, "num_replicas": 1,
        "max_msgs_per_subject": 2,
    }  # fmt: skip
    assert options.renamed(one) is None


def test_the_keys_of_a_bucket_go_with_its_name() -> None:
    one = stream("KV_a", subjects=["$KV.a.>", "other"])
    options = RestoreOptions(streams=("KV_a",), name="KV_b")
    assert options.config(one)["subjects"] == ["$KV.b.>", "other"]
    renamed = options.renamed(one)
    assert renamed is not None and (renamed.old, renamed.new) == (b"$KV.a.", b"$KV.b.")
    assert RestoreOptions(streams=("KV_a",), name="PLAIN").renamed(one) is None
    assert RestoreOptions(streams=("KV_a",), name="KV_a").renamed(one) is None


def test_streams_that_are_skipped_are_not_wanted() -> None:
    assert [one.name for one in RestoreOptions(skip=("A",)).wanted(POINT)] == ["KV_a"]
    with pytest.raises(RestoreRefusedError, match="no stream C"):
        RestoreOptions(skip=("C",)).check(POINT)
    with pytest.raises(RestoreRefusedError, match="no stream of the point"):
        RestoreOptions(streams=("A",), skip=("A",)).check(POINT)


def test_placement_can_be_left_out_and_max_age_counts_from_the_point() -> None:
    one = stream("A", max_age=100, placement={"tags": ["eu"]})
    assert RestoreOptions().config(one, 7) == one.config
    assert RestoreOptions(no_placement=True, keep_age=True).config(one, 7) == {"name": "A", "max_age": 107}
    assert RestoreOptions(keep_age=True).config(stream("A", max_age=0), 7)["max_age"] == 0
    assert RestoreOptions(keep_age=True).config(one, -7)["max_age"] == 100


@pytest.mark.parametrize(
    ("max_age", "messages", "text"),
    [(0, 3, ""), (100, 3, ""), (99, 3, "some of its 3"), (50, 3, "some of its 3"), (49, 3, "all of its 3"), (1, 0, "")],
)
def test_messages_that_go_at_once_are_told(max_age: int, messages: int, text: str) -> None:
    state = {"messages": messages, "first_ts": rfc3339(900), "last_ts": rfc3339(950)}
    one = StreamPoint("A", "then", {}, state, Blob.of(b""), ())
    found = expiring(one, {"max_age": max_age}, 1000)
    assert found.startswith(text) and bool(found) == bool(text)


def test_configurations_are_equal_whatever_servers_add() -> None:
    one = {"name": "A", "metadata": {"_nats.level": "1", "own": "x"}}
    assert same_config(one, {"name": "A", "metadata": {"own": "x"}})
    assert same_config({"name": "A"}, {"name": "A", "metadata": {"_nats.ver": "2"}})
    assert not same_config(one, {"name": "A", "metadata": {"own": "y"}})


def test_which_streams_lose_messages() -> None:
    assert not loses({"retention": "limits", "max_age": 0, "max_msgs": -1})
    assert loses({"max_msgs": 5}) and not loses_at_once({"max_msgs": 5})
    assert loses({"mirror": {"name": "A"}}) and not loses_at_once({"mirror": {"name": "A"}})
    for config in ({"max_age": 1}, {"allow_msg_ttl": True}, {"retention": "workqueue"}, {"retention": "interest"}):
        assert loses(config) and loses_at_once(config)
