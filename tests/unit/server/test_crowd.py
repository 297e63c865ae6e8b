"""Connections admitted and closed while file descriptors run short (server/fairness.py)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.server.fairness import STRANGER_SECONDS
from testkit.server_rig import Bench, FakeTransport, Peer


class Socket:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


@pytest.fixture
def next_descriptor(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number that the next connections get."""
    found = [10]
    plain = FakeTransport.get_extra_info

    def get_extra_info(self: FakeTransport, name: str, default: Any = None) -> Any:
        return Socket(found[0]) if name == "socket" else plain(self, name, default)

    monkeypatch.setattr(FakeTransport, "get_extra_info", get_extra_info)
    return found


def crowded_bench() -> Bench:
    bench = Bench()
    bench.server.crowd.watch = DescriptorWatch(lambda: 200, lambda: 10)
    return bench


def test_who_comes_when_descriptors_are_short_is_refused_and_told(
    next_descriptor: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "jetcluster.server")
    bench = crowded_bench()
    known = bench.client()
    next_descriptor[0] = 150
    for _ in range(3):
        late = Peer(bench, b"")
        assert late.info.endswith(b"-ERR 'maximum connections exceeded'\r\n")
        assert late.closed == "Maximum Connections Exceeded"
        assert late.transport.closing, "it does not linger"
    assert not known.closed
    assert bench.server.crowd.refused == 3
    assert len(caplog.records) == 1
    assert "File descriptors run short (limit 200, 40 of them for the store)" in caplog.records[0].getMessage()
    next_descriptor[0] = 20
    assert not bench.client().closed


def test_those_that_have_not_logged_in_go_first(next_descriptor: list[int]) -> None:
    bench = crowded_bench()
    first, second, known = Peer(bench, b""), Peer(bench, b""), bench.client()
    next_descriptor[0] = 150
    assert bench.client().closed, "they have only just come"
    bench.time.advance(STRANGER_SECONDS)
    fresh = bench.client()
    assert not fresh.closed
    assert first.closed == "Maximum Connections Exceeded"
    assert not second.closed
    assert not bench.client().closed
    assert second.closed
    assert bench.client().closed, "there is nobody left who has not logged in"
    assert not known.closed
    assert not fresh.closed
    assert bench.server.crowd.closed == 2


def test_without_a_watch_nothing_is_looked_at(next_descriptor: list[int]) -> None:
    next_descriptor[0] = 1 << 20
    assert not Bench().client().closed


def test_nobody_is_kept_in_mind_who_is_gone_or_known() -> None:
    bench = crowded_bench()
    peer = Peer(bench, b"")
    assert list(bench.server.crowd.strangers) == [peer.connection.cid]
    peer.connection.abort("Client Closed")
    known = bench.client()
    assert not known.closed
    assert bench.server.crowd.strangers == {}
