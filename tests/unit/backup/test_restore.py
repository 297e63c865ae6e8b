"""Restores against an account in memory: what is looked for before a stream is deleted or made."""

from __future__ import annotations

import pytest

from jetcluster.backup import consumers
from jetcluster.backup.restore import RestoredStream
from jetcluster.backup.restore_options import RestoreRefusedError, trial
from tests.unit.backup.accounts import FakeStream
from tests.unit.backup.restoring import Site

pytestmark = pytest.mark.usefixtures("transfers")


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_stream_is_made_and_its_consumers_with_it(site: Site) -> None:
    site.servers.streams.clear()
    assert site.restore() == [RestoredStream("S", 20, consumers=1)]
    made = site.servers.streams["S"]
    assert made.held == site.held and made.consumers["c"]["state"]["pending"]
    assert site.restore()[0].was_there


def test_a_consumer_has_no_more_replicas_than_its_stream(site: Site) -> None:
    """Servers would refuse the stream."""
    stream = site.servers.streams["S"]
    stream.consumers["c"]["config"]["num_replicas"] = 3
    stream.consumers["d"] = {**stream.consumers["c"], "config": {"durable_name": "d", "num_replicas": 1}}
    site.point = site.backup()
    for replicas, expected in ((0, 3), (3, 3), (1, 0)):
        site.servers.streams.clear()
        site.restore(replicas=replicas)
        made = {name: one["config"]["num_replicas"] for name, one in site.servers.streams["S"].consumers.items()}
        assert made == {"c": expected, "d": 1}


def test_a_stream_is_not_deleted_if_the_servers_would_refuse_the_new_one(site: Site) -> None:
    stream = site.servers.streams["S"]
    stream.add(1)
    site.servers.refused = "no suitable peers"
    with pytest.raises(RestoreRefusedError, match="nothing was deleted: no suitable peers"):
        site.restore(overwrite=True, replicas=5)
    assert site.servers.streams == {"S": stream}
    site.servers.refused = ""
    site.servers.begun.clear()
    assert site.restore(overwrite=True) == [RestoredStream("S", 20, consumers=1)]
    assert site.servers.streams["S"].held == site.held
    assert site.servers.begun == [trial({"name": "S"})["name"], "S"]


def test_what_is_tried_asks_as_much_and_takes_no_subject() -> None:
    config = {"name": "S", "subjects": ["a"], "max_bytes": 9, "num_replicas": 3, "placement": {}, "sealed": True}
    found = trial(config)
    assert found["name"] != "S" and found["subjects"] == [found["name"]]
    assert {key: found.get(key) for key in ("max_bytes", "num_replicas", "placement", "sealed")} == {
        "max_bytes": 9, "num_replicas": 3, "placement": {}, "sealed": None,
    }  # fmt: skip
    assert "subjects" not in trial({"name": "M", "mirror": {"name": "S"}})


def test_subjects_of_another_stream_are_seen_before_anything_is_made(site: Site) -> None:
    site.servers.streams = {"T": FakeStream("T", subjects=["S.1"])}
    with pytest.raises(RestoreRefusedError, match=r"S: the stream T has its subject S\.>"):
        site.restore()
    assert site.servers.begun == []


def test_a_consumer_with_too_much_pending_is_made_with_its_ack_floor(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MAX_CONSUMER_BYTES", 700)
    site.servers.streams.clear()
    site.restore()
    made = site.servers.streams["S"].consumers["c"]
    assert "pending" not in made["state"] and made["state"]["ack_floor"]["stream_seq"] == 3
    assert "S: consumer c has too much pending: its ack floor alone is restored" in site.said
    site.servers.streams.clear()
    site.restore(no_consumers=True)
    assert site.servers.streams["S"].consumers == {}
