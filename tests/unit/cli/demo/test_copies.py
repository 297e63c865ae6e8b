"""The demo's proof: a copy that lacks, doubles or changes a message fails it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jetcluster.cli.demo.copies import DemoError, Replica, check_copy, frozen, sequences
from jetcluster.client.connection import Frame
from jetcluster.client.reply import Reply, make_reply

EXPECTED = {n: b"order %d" % n for n in range(1, 6)}


class Answer:
    """A batch as `Connection.gather` returns it."""

    def __init__(self, messages: list[tuple[int, bytes]], end: Reply) -> None:
        self._messages, self._end = messages, end

    def wait(self) -> Reply:
        return self._end

    def frames(self) -> list[Frame]:
        return [(b"NATS/1.0\r\nNats-Sequence: %d\r\n\r\n" % seq, payload) for seq, payload in self._messages]


class Stored:
    """A server's copy, read two messages at a time."""

    def __init__(self, messages: dict[int, bytes], status: bytes = b"204 EOB") -> None:
        self.messages = sorted(messages.items())
        self.status = status
        self.asked = 0

    def gather(self, _subject: str, payload: bytes) -> Answer:
        self.asked += 1
        first = int(payload.split(b":")[1].split(b",")[0])
        left = [pair for pair in self.messages if pair[0] >= first]
        end = b"NATS/1.0 %b\r\nNats-Num-Pending: %d\r\n\r\n" % (self.status, max(len(left) - 2, 0))
        return Answer(left[:2], make_reply(end, b""))


def check(stored: Any) -> int:
    seen: list[int] = []
    check_copy(stored, "n1", "ORDERS", EXPECTED, seen.append)
    return sum(seen)


def test_a_complete_copy_is_read_batch_by_batch() -> None:
    stored = Stored(EXPECTED)
    assert check(stored) == len(EXPECTED)
    assert stored.asked == 3


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ({n: p for n, p in EXPECTED.items() if n != 3}, "n1 LOST 1 acked messages of ORDERS, first sequence 3"),
        ({**EXPECTED, 6: b"order 5"}, "n1 holds 1 messages of ORDERS twice or changed, first b'order 5'"),
        ({**EXPECTED, 2: b"order x"}, "n1 holds 1 messages of ORDERS twice or changed, first b'order x'"),
        ({}, "n1 LOST 5"),
    ],
)
def test_what_is_lost_doubled_or_changed_is_named(stored: dict[int, bytes], text: str) -> None:
    with pytest.raises(DemoError, match=text):
        check(Stored(stored))


def test_a_refused_read_is_no_proof() -> None:
    with pytest.raises(DemoError, match="408"):
        check(Stored(EXPECTED, b"408 Bad Request"))


def test_two_acks_of_one_sequence_are_an_error() -> None:
    assert sequences([2, 1], [b"a", b"b"]) == {2: b"a", 1: b"b"}
    with pytest.raises(DemoError, match="1 acks name a sequence twice"):
        sequences([1, 1], [b"a", b"b"])


def test_frozen_servers_go_on_also_after_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            with pytest.raises(RuntimeError), frozen([Replica("n2", "", process.pid)]):
                wait_for_state(process.pid, "T")
                raise RuntimeError
            wait_for_state(process.pid, "SR")
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()


def wait_for_state(pid: int, wanted: str) -> None:
    give_up = time.monotonic() + 10
    while (state := Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]) not in wanted:
        assert time.monotonic() < give_up, state
        time.sleep(0.01)
