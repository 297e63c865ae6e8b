"""Turns that can be put into the log: exactly those that apply can take.

The bytes of a turn's result in the rolling hash.
"""

from __future__ import annotations

import random
import time

from jetcluster.consumer.state import turn
from jetcluster.consumer.state.turn import Op, TurnResult
from jetcluster.stream.log.commands import CommandError
from jetcluster.stream.log.levels import DEAD_LETTER_LEVEL, ORDER_PER_KEY_LEVEL

OPS = [
    Op(1, 1, turn.DELIVER, [1, 2, 3]),
    Op(1, 1, turn.REDELIVER, [1]),
    Op(2, 1, turn.ACK, [(1 << 64) - 1]),
    Op(1, 7, turn.NAK, [(1, 5), (2, 0)]),
    Op(1, 1, turn.ADVANCE, (9, 3)),
    Op(1, 1, turn.SKIP, 4),
    Op(1, 1, turn.WAIT, b"_INBOX.x"),
    Op(1, 1, turn.UNWAIT, b""),
    Op(1, 1, turn.PIN, (b"group", b"pinned")),
    Op(1, 1, turn.PIN, (b"", b"")),
    Op(1, 1, turn.ACK, []),
    Op(1, 1, turn.DELIVER_SOME, ([1, 4], [2, 3])),
    Op(1, 1, turn.DELIVER_SOME, ([], [7])),
    Op(1, 1, turn.RELEASE, [2, 3]),
]


def decodes(body: bytes) -> bool:
    try:
        turn.decode(body)
    except CommandError:
        return False
    return True


def test_whatever_is_sound_can_be_applied_and_nothing_else() -> None:
    rng = random.Random(7)
    bodies = [turn.encode(b"12345678", 1, 1, rng.sample(OPS, rng.randrange(len(OPS)))) for _ in range(300)]
    assert all(map(turn.is_sound, bodies))
    sound = 0
    for _ in range(20_000):
        body = bytearray(rng.choice(bodies))
        for _ in range(rng.randrange(1, 3)):
            kind = rng.randrange(3)
            if kind == 0:
                body[rng.randrange(len(body))] = rng.choice((0, 1, 2, 8, 13, 14, 16, 127, 255))
            elif kind == 1:
                del body[rng.randrange(len(body)) :]
            else:
                body += rng.randbytes(rng.randrange(20))
            if not body:
                break
        found = turn.is_sound(bytes(body))
        assert found is decodes(bytes(body)), bytes(body)
        sound += found
    assert 1000 < sound < 15_000


def test_a_turn_needs_the_level_of_the_newest_of_its_ops() -> None:
    ack, some = Op(1, 1, turn.ACK, [1]), Op(1, 1, turn.DELIVER_SOME, ([1], [2]))
    bury = Op(1, 1, turn.BURY, [(1, 1, b"text")])
    for level, ops in (
        (0, []),
        (0, [ack]),
        (ORDER_PER_KEY_LEVEL, [ack, some]),
        (ORDER_PER_KEY_LEVEL, [Op(1, 1, turn.RELEASE, [2])]),
        (DEAD_LETTER_LEVEL, [bury, some, ack]),
        (DEAD_LETTER_LEVEL, [Op(1, 1, turn.BURIED, [1]), some]),
    ):
        assert turn.level_of(turn.encode(b"12345678", 1, 1, ops)) == level


def test_to_look_at_a_large_turn_takes_no_time() -> None:
    body = turn.encode(b"12345678", 1, 1, [Op(1, 1, turn.ACK, list(range(50_000)))])
    start = time.process_time()
    for _ in range(100):
        turn.is_sound(body)
    assert time.process_time() - start < 0.05


def test_bytes_tell_what_was_accepted_and_every_state_on_the_way() -> None:
    """Nodes of two versions compare them: they stay as they are."""
    void, empty, one, two = (TurnResult(accepted=accepted) for accepted in (False, True, True, True))
    one.marks += [1]
    two.marks += [1, 2]
    one.outcomes += [None]
    assert void.digest_bytes() == b"t\x00"
    assert empty.digest_bytes() == b"t\x01"
    assert one.digest_bytes() == b"t\x01" + bytes([1]) + bytes(7)
    assert two.digest_bytes() == one.digest_bytes() + bytes([2]) + bytes(7)
