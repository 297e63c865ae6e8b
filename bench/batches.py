"""The load `js-batch`: atomic batches (ADR-50), one publisher, a few commits without their ack at any time."""

from __future__ import annotations

from bench.loads import payload_of
from bench.result import LoadResult
from bench.window import Render, Window, open_wires, run_windows

_ID_DIGITS = 10
_PLACE = b"\0" * _ID_DIGITS
"""Stands for the batch id in the template: ids of one length keep all lengths in it right."""


async def atomic_publish(
    url: str, subject: str, *, batch: int = 1000, size: int = 128, window: int = 4, seconds: float = 3.0,
    count: int | None = None, pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Batches of `batch` messages, only the commit with a reply subject; `window` batches in flight, `count` in all
    (None: for `seconds`). `LoadResult.messages` counts messages, latencies are those of whole batches. The stream must
    allow atomic batches."""
    [wire] = await open_wires([url])
    load = Window(wire, window, b'"count":', _renderer(wire.inbox, subject.encode(), batch, payload_of(size)), count)
    return await run_windows(
        f"js-batch {batch} window={window}", [load], seconds=seconds if count is None else None, pids=pids, each=batch
    )


def _renderer(inbox: bytes, subject: bytes, batch: int, body: bytes) -> Render:
    frames = []
    for sequence in range(1, batch + 1):
        last = sequence == batch
        head = b"NATS/1.0\r\nNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n%b\r\n" % (
            _PLACE, sequence, b"Nats-Batch-Commit: 1\r\n" if last else b"")  # fmt: skip
        reply = b"%b.%b " % (inbox, _PLACE) if last else b""
        frames.append(b"HPUB %b %b%d %d\r\n%b%b\r\n" % (subject, reply, len(head), len(head) + len(body), head, body))
    template = b"".join(frames)

    def render(first: int, last: int) -> bytes:
        return b"".join([template.replace(_PLACE, b"%0*d" % (_ID_DIGITS, n)) for n in range(first, last)])

    return render
