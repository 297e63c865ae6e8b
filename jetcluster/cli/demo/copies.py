"""Proof that every replica has everything: each one is read alone, while the other servers are frozen (SIGSTOP) and so
cannot answer for it. `make demo` proves its flights with this, too."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from jetcluster.client.connection import Connection
from jetcluster.client.reply import NoRespondersError, RequestTimeoutError
from jetcluster.errors import JetclusterError
from jetcluster.protocol import headers as header_block

BATCH: Final = 4000
"""Messages per Direct Get."""
READABLE_SECONDS: Final = 20.0
ATTEMPTS: Final = 10
"""A server that was frozen has to hear of a leader before it answers reads again without one."""


class DemoError(JetclusterError):
    """Why the demo cannot run, or what it found wrong."""


class Replica(NamedTuple):
    """A running server with a replica of the stream."""

    name: str
    url: str
    pid: int


@contextlib.contextmanager
def frozen(replicas: Collection[Replica]) -> Iterator[None]:
    """Stops the processes meanwhile: they keep their connections and answer nothing."""
    for replica in replicas:
        os.kill(replica.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for replica in replicas:
            os.kill(replica.pid, signal.SIGCONT)


def prove_alone(
    replica: Replica, others: Collection[Replica], stream: str, expected: Mapping[int, bytes],
    advance: Callable[[int], object],
) -> float:  # fmt: skip
    """Reads the whole stream from one replica, the others frozen, and returns the seconds. `expected` has the payload
    of every sequence; `advance` is told of each batch's messages. Raises DemoError for anything lost, changed or
    doubled, and as `Connection` does."""
    last = max(expected)
    with Connection([replica.url]) as connection:
        _until_readable(connection, replica.name, stream, last)
        for attempt in range(1, ATTEMPTS + 1):
            with frozen(others):
                if attempt == ATTEMPTS or _has(connection, stream, last):
                    start = time.monotonic()
                    check_copy(connection, replica.name, stream, expected, advance)
                    return time.monotonic() - start
            time.sleep(0.5)
    raise AssertionError("the last attempt reads or raises")


def check_copy(
    connection: Connection, name: str, stream: str, expected: Mapping[int, bytes], advance: Callable[[int], object]
) -> None:
    """Reads the whole stream by batches of Direct Get: every sequence of `expected` must be there with its payload, and
    nothing else. Raises DemoError, and as `Connection` does."""
    seq, missing, extra = 1, dict(expected), list[bytes]()
    while True:
        answer = connection.gather(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d,"batch":%d}' % (seq, BATCH))
        end = answer.wait()
        if end.status != 204:
            raise DemoError(f"{name}: direct get of {stream} from {seq}: {end.status} {end.description}")
        frames = answer.frames()
        for head, payload in frames:
            seq = int(header_block.get(head, b"Nats-Sequence") or 0)
            if missing.pop(seq, None) != payload:
                extra.append(payload)
        advance(len(frames))
        seq += 1
        if not frames or end.get("Nats-Num-Pending") == "0":
            break
    if missing:
        raise DemoError(f"{name} LOST {len(missing)} acked messages of {stream}, first sequence {min(missing)}")
    if extra:
        raise DemoError(f"{name} holds {len(extra)} messages of {stream} twice or changed, first {extra[0]!r}")


def sequences(acked: Sequence[int], payloads: Sequence[bytes]) -> dict[int, bytes]:
    """Returns the payload of every acked sequence; both are in the order of the messages. Raises DemoError if two acks
    name one sequence."""
    found = dict(zip(acked, payloads, strict=True))
    if len(found) != len(payloads):
        raise DemoError(f"{len(payloads) - len(found)} acks name a sequence twice")
    return found


def _has(connection: Connection, stream: str, seq: int) -> bool:
    with contextlib.suppress(NoRespondersError, RequestTimeoutError):
        return not connection.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d}' % seq, timeout=2.0).status
    return False


def _until_readable(connection: Connection, name: str, stream: str, seq: int) -> None:
    """A server that was away joins the readers once it is current."""
    give_up = time.monotonic() + READABLE_SECONDS
    while not _has(connection, stream, seq):
        if time.monotonic() > give_up:
            raise DemoError(f"{name}: sequence {seq} of {stream} is not readable")
        time.sleep(0.05)
