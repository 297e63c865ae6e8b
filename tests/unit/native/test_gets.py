"""Compiled reading of Direct Get requests, and compiled header blocks of their answers, equal those of Python."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetcluster import native
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.api import Columns
from jetcluster.stream.read.direct_get import frames_of, message_head
from jetcluster.stream.read.get_request import GetRequest

pytestmark = [
    pytest.mark.skipif(native.plain_get is None, reason=f"no compiled loops: {native.why_pure}"),
    pytest.mark.thorough,
]

numbers = st.one_of(st.integers(-3, 12), st.integers(0, 1 << 65), st.sampled_from([10**18 - 1, 10**18, (1 << 63) - 1]))
texts = st.one_of(st.text('ab.*>"\\ \x7fé', max_size=6), st.text(max_size=4))
bodies = st.one_of(
    st.builds(lambda name, value: {name: value}, st.sampled_from(["seq", "last_by_subj", "Seq", "batch"]), numbers),
    st.builds(lambda name, value: {name: value}, st.sampled_from(["last_by_subj", "next_by_subj", "seq"]), texts),
    st.builds(lambda seq, subject: {"seq": seq, "last_by_subj": subject}, numbers, texts),
)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :"), (",\t", ":\n"), (",", ":  ")])


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Requests, some of them with a byte too much, too little or changed."""
    text = json.dumps(draw(bodies), separators=draw(separators), ensure_ascii=draw(st.booleans()))
    raw = bytearray(text.encode("utf-8", "surrogateescape") if draw(st.booleans()) else text.encode())
    raw = (
        bytearray(draw(st.sampled_from([b"", b"", b"", b" ", b"\n"])))
        + raw
        + draw(st.sampled_from([b"", b"", b" ", b"}"]))
    )
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(raw) - 1))
        raw[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b'"', b"0", b"}", b"{", b"\x00", b"9", b":", b" "])
        )
        if not raw:
            break
    return bytes(raw)


@settings(max_examples=3000, deadline=None)
@given(payloads())
@example(b'{"seq":5}')
@example(b'{"seq": 5}')
@example(b'{ "last_by_subj": "a.b" }')
@example(b'{"seq":05}')
@example(b'{"seq":}')
@example(b'{"last_by_subj":"}')
@example(b'{"last_by_subj":""}')
def test_what_is_read_is_what_python_reads(payload: bytes) -> None:
    assert native.plain_get is not None
    found = native.plain_get(payload)
    if found is None:
        return
    request = GetRequest.decode(payload)
    assert not request.unknown and request.selects and not request.conflicts
    assert request.given == (["seq"] if isinstance(found, int) else ["last_by_subj"])
    assert found == (request.seq or request.last_by_subj)
    assert isinstance(found, int) or is_literal(found)


@pytest.mark.parametrize(
    "body", [{"seq": 1}, {"seq": 10**18 - 1}, {"last_by_subj": "a"}, {"last_by_subj": "orders.eu-1_x/~!"}]
)
def test_the_requests_of_clients_are_plain(body: dict[str, object]) -> None:
    assert native.plain_get is not None
    (wanted,) = body.values()
    expected = wanted.encode() if isinstance(wanted, str) else wanted
    for separator in ((",", ":"), (", ", ": ")):
        assert native.plain_get(json.dumps(body, separators=separator).encode()) == expected


@pytest.mark.parametrize(
    "payload", [b'{"seq":0}', b'{"seq":1000000000000000000}', b'{"last_by_subj":"a.*"}', b"", b"{", b"{}", b"\x00" * 20]
)
def test_what_is_not_plain_is_left_to_python(payload: bytes) -> None:
    assert native.plain_get is not None
    assert native.plain_get(payload) is None
    with pytest.raises(TypeError):
        native.plain_get(bytearray(payload))  # type: ignore[arg-type]


@settings(max_examples=3000)
@given(
    st.sampled_from([b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: ", b""]),
    st.binary(max_size=300),
    st.one_of(st.integers(0, 1 << 40), st.integers(0, (1 << 64) - 1)),
    st.one_of(
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.integers(-(10**9), 4 * 10**9).map(lambda second: second * 10**9),
        st.integers(0, 4 * 10**15).map(lambda millisecond: millisecond * 1000),
    ),
    st.integers(-1, 1 << 40),
    st.one_of(st.integers(-1, 1 << 40), st.integers(0, (1 << 64) - 1)),
)
@example(b"", b"", 0, 0, -1, -1)
@example(b"", b"", 1, 951_782_400_000_000_000, 0, 0)  # 2000-02-29
@example(b"", b"", (1 << 64) - 1, -(1 << 63), (1 << 64) - 1, (1 << 64) - 1)
def test_heads_are_equal(start: bytes, subject: bytes, seq: int, ts: int, pending: int, last: int) -> None:
    assert native.message_head is not None
    expected = message_head(start, subject, seq, ts, pending, last)
    assert native.message_head(start, subject, seq, ts, pending, last) == expected


def test_every_day_of_four_centuries() -> None:
    assert native.message_head is not None
    for day in range(-70_000, 92_000):
        ts = day * 86_400_000_000_000 + 1
        assert native.message_head(b"", b"", 1, ts) == message_head(b"", b"", 1, ts)


stored = st.tuples(
    st.integers(0, (1 << 64) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.binary(max_size=20),
    st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
    st.binary(max_size=60),
)


@settings(max_examples=500)
@given(
    st.lists(stored, max_size=12),
    st.booleans(),
    st.integers(-2, 1 << 40),
    st.integers(0, 1 << 63),
    st.integers(-1, 400),
)
def test_frames_of_a_page_are_equal(
    some: list[tuple[int, int, bytes, bytes, bytes]], no_headers: bool, pending: int, last: int, room: int
) -> None:
    assert native.frames_of is not None
    columns = Columns(*([message[part] for message in some] for part in range(5)))  # type: ignore[arg-type]

    def start_of(block: bytes) -> bytes:
        return b"start " + block

    compiled = native.frames_of(columns, start_of, no_headers, pending, last, room)
    assert compiled == frames_of(columns, start_of, no_headers, pending, last, room)
