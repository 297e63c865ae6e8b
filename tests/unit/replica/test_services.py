"""Events of a stream go to its account and, with that account's name, to the system account."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.model.advisory import Advisories, leader_elected
from jetcluster.replica.replica_state import tell_both
from jetcluster.replica.services import Events
from testkit.twins.time import ManualTime, SeededRng


class Bus:
    """Takes what is published while somebody listens."""

    def __init__(self, heard: bool) -> None:
        self.heard = heard
        self.events: list[dict[str, Any]] = []

    def has_interest(self, subject: bytes) -> bool:
        return self.heard

    def publish(self, subject: bytes, payload: bytes) -> None:
        assert subject == b"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.S"
        self.events.append(json.loads(payload))


@pytest.mark.parametrize(("own", "system"), [(True, True), (True, False), (False, True), (False, False)])
def test_an_event_is_made_once_and_only_for_those_that_listen(own: bool, system: bool) -> None:
    buses = {"A": Bus(own), "$SYS": Bus(system)}
    events = Events(buses.__getitem__, Advisories(ManualTime(), SeededRng(1), "N1"), "$SYS")  # type: ignore[arg-type]
    replica: Any = SimpleNamespace(
        events=events, bus=buses["A"], assignment=SimpleNamespace(account="A", name="S"), group=None
    )
    made: list[int] = []
    tell_both(replica, leader_elected("S", "N1"), replicas=lambda: made.append(1) or [{"name": "N1"}])
    assert len(made) == (own or system)
    fields = {"stream": "S", "leader": "N1", "replicas": [{"name": "N1"}]}
    for bus, wanted in ((buses["A"], fields), (buses["$SYS"], {"account": "A", **fields})):
        shown = [{key: event[key] for key in list(event)[3:]} for event in bus.events]
        assert shown == ([wanted] if bus.heard else [])
        assert [list(one) for one in shown] == ([list(wanted)] if bus.heard else [])
