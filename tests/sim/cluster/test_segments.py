"""A journal that gives up what is needed, or keeps what is not, is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.segments import KEPT, Segments, watched

pytestmark = pytest.mark.sim


async def _many(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    config = {"name": "S", "subjects": ["s"], "num_replicas": 3, "max_msgs": 10}
    await session.api("STREAM.CREATE.S", config)
    for _ in range(300):
        await session.js_publish("s", bytes(4_000))
    await session.close()


@pytest.fixture
def segments(deployment: Deployment) -> Iterator[Segments]:
    """Segments of one server have been given up."""
    with watched(deployment) as found:
        machine = deployment.machines["n2"]
        machine.kill()
        machine.segment = 64 << 10
        machine.start()
        deployment.run(5.0)
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _many(deployment)), 60.0)
        deployment.run(35.0)  # it flushes, and looks at its segments
        yield found
        deployment.failures.clear()


@pytest.fixture
def journal(deployment: Deployment, segments: Segments) -> Any:
    assert segments.looked >= 3
    assert not deployment.failures
    return jetstream_of(deployment.machines["n2"]).network.raft.journal


def _give_up(segments: Segments, journal: Any, batch: int = 0) -> int:
    segment = int(journal.retention.oldest) - 1
    segments.collected(journal.retention, segment, batch)
    return segment


def test_what_later_segments_tell_may_go(deployment: Deployment, segments: Segments, journal: Any) -> None:
    segments.deleted(journal, _give_up(segments, journal, journal.synced))
    assert not deployment.failures


def test_the_newest_state_of_a_group_is_missed(deployment: Deployment, segments: Segments, journal: Any) -> None:
    log = journal.groups[max(journal.groups)]
    log.stated = journal.retention.oldest - 1
    segment = _give_up(segments, journal)
    what = f"n2 gives up segment {segment}, with the newest state of group {log.gid}"
    assert what in deployment.failures[0]


def test_entries_of_a_group_are_missed(deployment: Deployment, segments: Segments, journal: Any) -> None:
    log = journal.groups[max(journal.groups)]
    journal.retention.oldest = log.first_segment() + 1
    segment = _give_up(segments, journal)
    assert any(f"gives up segment {segment}, with entries of group {log.gid}" in text for text in deployment.failures)


def test_what_goes_before_the_disk_has_the_rest_is_noticed(
    deployment: Deployment, segments: Segments, journal: Any
) -> None:
    batch = journal.synced + 1
    segments.deleted(journal, _give_up(segments, journal, batch))
    assert f"and batch {batch} that replaces it is not on the disk" in deployment.failures[0]


def test_what_was_not_given_up_is_noticed(deployment: Deployment, segments: Segments, journal: Any) -> None:
    segments.deleted(journal, journal.retention.oldest)
    assert "which it has not given up" in deployment.failures[0]


def test_one_that_nobody_needs_is_noticed(deployment: Deployment, segments: Segments, journal: Any) -> None:
    retention = journal.retention
    retention.oldest, before = 0, retention.oldest
    segments.collected(retention, 0, journal.synced, before)
    retention.oldest = before
    assert "n2 keeps segment 0, of which no group has anything" in deployment.failures[0]


def test_too_many_that_stay_are_noticed(deployment: Deployment, segments: Segments, journal: Any) -> None:
    retention, now = journal.retention, deployment.scheduler.now
    journal.segment += 1_000_000  # as if all since had been kept
    journal.restatement.complete = journal.segment
    segments.collected(retention, retention.oldest, journal.synced)
    assert not deployment.failures
    attrgetter("_full")(segments)[journal] = retention.oldest, now - KEPT - 1.0
    segments.collected(retention, retention.oldest, journal.synced)
    assert f"segments for {KEPT + 1.0:.1f} s, of" in deployment.failures[0]
    journal.segment -= 1_000_000
