"""Advisories of a consumer's owner."""

from __future__ import annotations

import json

from jetcluster.consumer.owner.context import Advise
from jetcluster.model.advisory import MAX_DELIVERIES, Advisories
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.consumer.rig import InboxBus


def test_only_what_somebody_listens_to_is_published() -> None:
    bus, rendered = InboxBus(), []
    render = Advisories(ManualTime(), SeededRng(1)).render
    advise = Advise(bus, lambda event: rendered.append(event) or render(event), "S", "C")  # type: ignore[func-returns-value]
    advise.exhausted(1, 2)
    advise.pinned(b"g", b"id")
    assert not rendered and not advise.wanted(MAX_DELIVERIES)
    events = bus.listen(b"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.*")
    advise.exhausted(3, 4)
    advise.unpinned(b"g", "admin")
    assert len(rendered) == len(events) == 1
    assert json.loads(events[0].payload)["stream_seq"] == 3


def test_a_reason_that_is_no_text() -> None:
    bus = InboxBus()
    events = bus.listen(b"$JS.EVENT.ADVISORY.>")
    advise = Advise(bus, Advisories(ManualTime(), SeededRng(1)).render, "S", "C")
    advise.terminated(1, 2, 3, b"\xff")
    assert json.loads(events[0].payload)["reason"] == "\ufffd"
