from __future__ import annotations

from jetcluster.consumer.owner import statuses


def test_golden_bytes() -> None:
    """Lengths as seen on nats-server's wire."""
    assert len(statuses.render(statuses.NO_MESSAGES)) == 28
    assert len(statuses.heartbeat(2, 2)) == 75
    assert len(statuses.render(statuses.TIMEOUT, 2, 0)) == 81
    assert len(statuses.render(statuses.TOO_LARGE, 2, 5)) == 95
    assert len(statuses.render(statuses.bad_request("heartbeat value too large"))) == 56


def test_limits() -> None:
    assert statuses.exceeded_expires(90_000_000_000) == b"409 Exceeded MaxRequestExpires of 1m30s"
    assert statuses.exceeded_batch(5) == b"409 Exceeded MaxRequestBatch of 5"
    assert statuses.exceeded_bytes(5) == b"409 Exceeded MaxRequestMaxBytes of 5"


def test_a_text_cannot_break_the_header() -> None:
    assert statuses.bad_request("a\r\nX: b") == b"400 Bad Request - a  X: b"


def test_more_lines_of_a_heartbeat() -> None:
    assert statuses.heartbeat(1, 2, b"Nats-Consumer-Stalled: x\r\n").endswith(
        b"Nats-Last-Stream: 2\r\nNats-Consumer-Stalled: x\r\n\r\n"
    )
