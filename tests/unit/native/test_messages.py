"""Compiled frames and columns equal those of Python, and nothing malformed gets through either."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster import native
from jetcluster.mesh.frames import MAX_DELIVER_BYTES, FrameError, decode_msgs, encode_msgs
from jetcluster.protocol.bus import Outgoing
from jetcluster.server.accounts.subscription import rendered
from testkit.native import python_alone
from tests.unit.native.takers import answers_taken

pytestmark = pytest.mark.skipif(native.render is None, reason=f"no compiled loops: {native.why_pure}")

names = st.sampled_from([b"a", b"a.b", b"orders.eu.1", b"x" * 300])
replies = st.sampled_from([b"", b"", b"_INBOX.a.1", b"r"])
blocks = st.sampled_from([b"", b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"])
payloads = st.one_of(st.sampled_from([b"", b"x", b"y" * 9, b"z" * 1000]), st.binary(max_size=120))
messages = st.lists(st.tuples(names, replies, blocks, payloads), min_size=1, max_size=40)


def by_python(function: object, *arguments: object) -> object:
    with python_alone():
        return function(*arguments)  # type: ignore[operator]


@settings(max_examples=400)
@given(messages, st.sampled_from([b" 1 ", b" 123456 "]), st.booleans())
def test_rendered(some: list[Outgoing], mid: bytes, shows_headers: bool) -> None:
    compiled, *sizes = rendered(mid, some, shows_headers)
    pieces, *expected = by_python(rendered, mid, some, shows_headers)  # type: ignore[misc]
    assert b"".join(compiled) == b"".join(pieces) and sizes == expected


@settings(max_examples=400)
@given(messages)
def test_columns(some: list[Outgoing]) -> None:
    frame = encode_msgs("ACC", some)
    assert frame == by_python(encode_msgs, "ACC", some)
    assert decode_msgs(frame, 5, len(frame)) == ("ACC", some) == by_python(decode_msgs, frame, 5, len(frame))


subjects = st.sampled_from(
    [b"_INBOX.a.1", b"_INBOX.a.22", b"_INBOX.a.", b"_INBOX.a.x.y", b"_INBOX.b.1", b"plain.a", b"none", b"_INBOX.a"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(subjects, payloads), max_size=30))
def test_answers(answers: list[tuple[bytes, bytes]]) -> None:
    assert answers_taken(answers) == by_python(answers_taken, answers)


def _outcome(buffer: bytes, start: int, end: int) -> object:
    try:
        return decode_msgs(buffer, start, end)
    except FrameError as error:
        return str(error)


def test_damaged_columns_give_the_same_in_both() -> None:
    rng = random.Random(1)
    for _ in range(20_000):
        count = rng.randrange(1, 6)
        some = [
            (
                rng.choice([b"a", b"b.c"]),
                rng.choice([b"", b"r"]),
                rng.choice([b"", b"h" * 20]),
                rng.randbytes(rng.randrange(4)),
            )
            for _ in range(count)
        ]
        raw = bytearray(encode_msgs("A", some))
        for _ in range(rng.randrange(3)):
            raw[rng.randrange(5, len(raw))] = rng.choice([0, 1, 2, 3, 255, rng.randrange(256)])
        end = len(raw) if rng.random() < 0.7 else rng.randrange(5, len(raw) + 1)
        buffer = bytes(raw) + rng.randbytes(3)
        assert _outcome(buffer, 5, end) == by_python(_outcome, buffer, 5, end), (buffer, end)


def test_more_than_nodes_send_together_is_refused() -> None:
    assert native.split_columns is not None
    one = b"\x01\x00\x00\x00\x01s" + b"\x01\x00\x00\x00\x00" * 3
    assert native.split_columns(one, 0, len(one), 1000, 1000) is not None
    assert native.split_columns(one, 0, len(one), 1001, 1000) is None
    assert native.split_columns(one, 0, len(one) + 1, 1, MAX_DELIVER_BYTES) is None


@pytest.mark.parametrize(
    "wrong",
    [
        (b"a", b"", b""),
        (b"a", b"", b"", "text"),
        (b"a", None, b"", b""),
        None,
        (bytearray(b"a"), b"", b"", b""),
        [b"a", b"", b"", b""],
    ],
)
def test_what_is_no_message_is_an_error_and_no_crash(wrong: object) -> None:
    assert native.render is not None and native.join_columns is not None
    for function, before in ((native.render, (b" 1 ",)), (native.join_columns, ())):
        after = (True,) if before else ()
        with pytest.raises(TypeError):
            function(*before, [(b"a", b"", b"", b""), wrong], *after)
