"""WebSocket frames: the cases of RFC 6455 and 7692, and whatever else may come (protocol/websocket.py)."""

from __future__ import annotations

import random
import struct
import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.protocol import websocket
from jetcluster.protocol.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    FrameWriter,
    HandshakeError,
    Rules,
    WebSocketError,
    WebSocketReader,
    accept,
    parse,
    place_of,
    places_of,
    refusal,
)

KEY = b"\x37\xfa\x21\x3d"


def masked(opcode: int, payload: bytes, *, final: bool = True, rsv: int = 0, key: bytes = KEY) -> bytes:
    first = bytes([final << 7 | rsv << 4 | opcode])
    if len(payload) < 126:
        head = bytes([0x80 | len(payload)])
    elif len(payload) < 65536:
        head = struct.pack(">BH", 0xFE, len(payload))
    else:
        head = struct.pack(">BQ", 0xFF, len(payload))
    return first + head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


def deflated(data: bytes, level: int = 6) -> bytes:
    packer = zlib.compressobj(level, wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def read(reader: WebSocketReader, data: bytes, step: int = 0) -> list[tuple[int, bytes]]:
    """Events, neighbouring payloads joined, as a stream has them."""
    found: list[tuple[int, bytes]] = []
    for at in range(0, len(data), step or len(data)):
        reader.feed(data[at : at + (step or len(data))])
        while (event := reader.next()) is not None:
            if event == websocket.NOTHING:
                continue
            if found and event[0] == BINARY == found[-1][0]:
                found[-1] = (BINARY, found[-1][1] + event[1])
            else:
                found.append(event)
    return found


def test_the_examples_of_the_rfc() -> None:
    reader = WebSocketReader(deflate=True)
    assert read(reader, bytes.fromhex("818537fa213d7f9f4d5158")) == [(BINARY, b"Hello")]
    assert read(reader, bytes.fromhex("898537fa213d7f9f4d5158")) == [(PING, b"Hello")]
    # RFC 7692 7.2.3.1: "Hello" compressed, here masked with zeros
    assert read(reader, bytes.fromhex("c18700000000f248cdc9c90700")) == [(BINARY, b"Hello")]
    assert FrameWriter(deflate=False).frames(b"Hello") == bytes.fromhex("820548656c6c6f")
    assert websocket.control(websocket.PONG, b"Hello") == bytes.fromhex("8a0548656c6c6f")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 0])
def test_fragments_with_a_ping_between_them_in_any_cut(step: int) -> None:
    data = (
        masked(BINARY, b"PUB a", final=False)
        + masked(PING, b"x")
        + masked(CONTINUATION, b"", final=False)
        + masked(CONTINUATION, b" 0\r\n\r\n")
        + masked(TEXT, b"PING\r\n")
        + masked(BINARY, b"")
        + masked(CLOSE, b"\x03\xe8bye")
        + b"never read"
    )
    assert read(WebSocketReader(deflate=False), data, step) == [
        (BINARY, b"PUB a"),
        (PING, b"x"),
        (BINARY, b" 0\r\n\r\nPING\r\n"),
        (CLOSE, b"\x03\xe8bye"),
    ]


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (b"\x82\x05Hello", 1002, "mask bit missing"),
        (masked(BINARY, b"a", rsv=4), 1002, "compressed frame received without negotiated permessage-deflate"),
        (masked(BINARY, b"a", rsv=2), 1002, "RSV2 and RSV3 must be clear"),
        (masked(BINARY, b"a", rsv=1), 1002, "RSV2 and RSV3 must be clear"),
        (masked(3, b"a"), 1002, "unknown opcode 3"),
        (masked(11, b""), 1002, "unknown opcode 11"),
        (masked(CONTINUATION, b"a"), 1002, "invalid continuation frame"),
        (masked(BINARY, b"a", final=False) + masked(BINARY, b"a"), 1002, "new message started"),
        (masked(PING, b"a" * 126), 1002, "control frame length"),
        (masked(PING, b"a", final=False), 1002, "control frame does not have final bit set"),
        (masked(CLOSE, b"a"), 1002, "close frame payload cannot be 1 byte"),
        (masked(CLOSE, b"\x03\xe7"), 1002, "invalid close status code 999"),
        (masked(CLOSE, b"\x03\xed"), 1002, "invalid close status code 1005"),
        (masked(CLOSE, b"\x03\xe8\xff\xff"), 1007, "invalid utf8"),
        (b"\x82\xff" + b"\xff" * 12, 1002, "invalid 64-bit payload length"),
    ],
)
def test_what_breaks_the_rules_is_refused_with_a_status(data: bytes, code: int, text: str) -> None:
    with pytest.raises(WebSocketError, match=text) as caught:
        read(WebSocketReader(deflate=False), data)
    assert caught.value.code == code


def test_an_unmasked_frame_is_refused_before_its_payload_is_there() -> None:
    with pytest.raises(WebSocketError):
        read(WebSocketReader(deflate=False), b"\x82\x05")


def test_payload_is_handed_on_before_its_frame_is_whole() -> None:
    reader = WebSocketReader(deflate=False)
    frame = masked(BINARY, bytes(100_000))
    assert read(reader, frame[:50_014]) == [(BINARY, bytes(50_000))]
    assert read(reader, frame[50_014:]) == [(BINARY, bytes(50_000))]


@pytest.mark.parametrize("step", [1, 5, 0])
def test_compressed_messages_in_frames_and_with_final_blocks(step: int) -> None:
    packed = deflated(b"Hello " * 50)
    ended = zlib.compressobj(6, wbits=-15)
    final = ended.compress(b"End") + ended.flush() + b"\x00"  # RFC 7692 7.2.3.4: a block with BFINAL set
    data = (
        masked(BINARY, packed[:4], rsv=4, final=False)
        + masked(PING, b"")
        + masked(CONTINUATION, packed[4:])
        + masked(BINARY, b"plain")
        + masked(BINARY, final, rsv=4)
        + masked(BINARY, deflated(b""), rsv=4)
    )
    found = read(WebSocketReader(deflate=True), data, step)
    assert b"".join(payload for opcode, payload in found if opcode == BINARY) == b"Hello " * 50 + b"plain" + b"End"


def test_a_bomb_comes_in_pieces_and_can_be_left_at_any_time() -> None:
    reader = WebSocketReader(deflate=True)
    bomb = masked(BINARY, deflated(bytes(64 * 1024 * 1024), 9), rsv=4)
    assert len(bomb) < 80_000
    reader.feed(bomb)
    for _ in range(3):
        event = reader.next()
        assert event is not None
        assert 0 < len(event[1]) <= websocket.PIECE_BYTES


@pytest.mark.parametrize(
    "data",
    [
        masked(BINARY, b"", final=False) + masked(CONTINUATION, b"", final=False) * 40_000,
        masked(BINARY, b"") * 40_000,
        masked(BINARY, b"", rsv=4) * 40_000,
        masked(BINARY, deflated(b""), rsv=4) * 20_000,
        masked(PING, b"") * 40_000,
        masked(websocket.PONG, b"x") * 40_000,
        masked(BINARY, b"\x00\x00\x00\xff\xff" * 50_000, rsv=4),  # stored blocks of no bytes
        masked(BINARY, b"".join(deflated(b"ab%d" % (n % 7)) + b"\x00\x00\xff\xff" for n in range(25_000)), rsv=4),
    ],
    ids=["continuations", "empty", "compressed-empty", "deflated-empty", "pings", "pongs", "empty-blocks", "blocks"],
)
def test_an_event_is_a_bounded_amount_of_work(data: bytes) -> None:
    reader = WebSocketReader(deflate=True)
    reader.feed(data)
    longest, events = 0.0, 0
    while True:
        begun = time.process_time()
        event = reader.next()
        longest = max(longest, time.process_time() - begun)
        if event is None:
            break
        events += 1
    assert events > 20
    assert longest < 0.03  # noise; an event takes a few microseconds, inflating a piece some hundred


def test_a_message_may_not_be_made_of_any_number_of_deflate_streams() -> None:
    """Two bytes each, which end at once."""
    with pytest.raises(WebSocketError) as caught:
        read(WebSocketReader(deflate=True), masked(BINARY, b"\x03\x00" * 100_000, rsv=4))
    assert caught.value.code == 1009
    few = masked(BINARY, b"\x03\x00" * 5, rsv=4) * 50
    assert read(WebSocketReader(deflate=True), few + masked(BINARY, b"x")) == [(BINARY, b"x")]


def test_a_message_may_not_inflate_to_more_than_the_reader_takes() -> None:
    data = masked(BINARY, deflated(bytes(1_000_000), 9), rsv=4)
    assert read(WebSocketReader(deflate=True, most=1_000_000), data * 3) == [(BINARY, bytes(3_000_000))]
    with pytest.raises(WebSocketError) as caught:
        read(WebSocketReader(deflate=True, most=999_999), data)
    assert caught.value.code == 1009


def test_what_is_no_deflate_stream_is_refused() -> None:
    with pytest.raises(WebSocketError) as caught:
        read(WebSocketReader(deflate=True), masked(BINARY, b"\xff\xff\xff", rsv=4))
    assert caught.value.code == 1007


@given(
    st.lists(st.tuples(st.binary(max_size=3000), st.booleans()), max_size=6),
    st.integers(1, 400),
    st.binary(min_size=4, max_size=4),
)
@settings(deadline=None, max_examples=60)
def test_any_messages_in_any_cut_come_out_as_they_went_in(
    messages: list[tuple[bytes, bool]], step: int, key: bytes
) -> None:
    data = b"".join(
        masked(BINARY, deflated(body) if packed else body, rsv=4 * packed, key=key) for body, packed in messages
    )
    found = read(WebSocketReader(deflate=True), data, step)
    assert b"".join(payload for _, payload in found) == b"".join(body for body, _ in messages)


@given(st.binary(max_size=300), st.integers(1, 50))
@settings(deadline=None, max_examples=150)
def test_garbage_ends_in_events_or_an_error_of_ours(data: bytes, step: int) -> None:
    try:
        read(WebSocketReader(deflate=True), data, step)
    except WebSocketError as error:
        assert error.code in (1002, 1007, 1009)


@pytest.mark.parametrize("size", [0, 1, 3, 125, 126, 1535, 1536, 1537, 65535, 65536, 100_003])
@pytest.mark.parametrize("deflate", [False, True])
def test_frames_of_the_server_at_every_boundary(size: int, *, deflate: bool) -> None:
    body = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    frame = FrameWriter(deflate=deflate).frames(body)
    opcode, again = unframed(frame)[0]
    assert again == body
    assert bool(opcode & 0x40) == (deflate and size > 64)
    assert websocket.unmasked(websocket.unmasked(body, KEY), KEY) == body
    assert read(WebSocketReader(deflate=False), masked(BINARY, body)) == ([(BINARY, body)] if body else [])


def test_browsers_get_short_frames_and_what_does_not_shrink_goes_as_it_is() -> None:
    body = random.Random(1).randbytes(10_000)
    frames = unframed(FrameWriter(deflate=True, limit=4096).frames(body))
    assert b"".join(payload for _, payload in frames) == body
    assert [(opcode, len(payload)) for opcode, payload in frames] == [(0x82, 4096), (0x82, 4096), (0x82, 1808)]


def unframed(data: bytes) -> list[tuple[int, bytes]]:
    """(first byte, payload inflated) of a server's frames."""
    found = []
    while data:
        length, at = data[1], 2
        assert not length & 0x80
        if length == 126:
            (length,), at = struct.unpack_from(">H", data, 2), 4
        elif length == 127:
            (length,), at = struct.unpack_from(">Q", data, 2), 10
        payload, first, data = data[at : at + length], data[0], data[at + length :]
        found.append((first, zlib.decompress(payload + b"\0\0\xff\xff\x03\0", -15) if first & 0x40 else payload))
    return found


def test_the_text_of_a_close_frame_is_cut_to_what_fits() -> None:
    payload = websocket.close_payload(1002, "ä" * 200)
    assert len(payload) == 124
    assert payload[2:].decode() == "ä" * 61


# The request that opens a WebSocket (protocol/websocket.py). Statuses are those of nats-server 2.15.


USUAL = {
    "Host": "a.example:8080",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def head(line: str = "GET / HTTP/1.1", **changed: str | None) -> bytes:
    fields = {**USUAL, **{key.replace("_", "-"): value for key, value in changed.items()}}
    return "\r\n".join([line, *(f"{key}: {value}" for key, value in fields.items() if value is not None)]).encode()


def answer(request: bytes, rules: Rules = Rules()) -> str:  # noqa: B008 - frozen
    return accept(parse(request), rules).decode()


def status(request: bytes, rules: Rules = Rules()) -> int:  # noqa: B008 - frozen
    with pytest.raises(HandshakeError) as caught:
        answer(request, rules)
    assert refusal(caught.value).startswith(b"HTTP/1.1 %d " % caught.value.status)
    return caught.value.status


def test_the_example_of_the_rfc() -> None:
    assert answer(head()) == (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    )
    assert answer(head("GET /any/path?x=1 HTTP/1.1"), Rules(headers={"X-A": "b"})).endswith("\r\nX-A: b\r\n\r\n")


@pytest.mark.parametrize(
    ("request_head", "expected"),
    [
        (head("POST / HTTP/1.1"), 405),
        (head("GET / HTTP/1.0"), 400),
        (head("GET /"), 400),
        (b"\x16\x03\x01\x02", 400),
        (head() + b"\r\nno colon", 400),
        (head() + b"\r\nHost: b", 400),
        (head() + b"\r\n folded: x", 400),
        (head(Host=None), 400),
        (head(Upgrade=None), 400),
        (head(Connection="close"), 400),
        (head(Sec_WebSocket_Key=None), 400),
        (head(Sec_WebSocket_Key="abc"), 400),
        (head(Sec_WebSocket_Version="8"), 400),
        (head("GET /mqtt HTTP/1.1"), 404),
        (head("GET /leafnode HTTP/1.1"), 404),
    ],
)
def test_other_requests_are_refused(request_head: bytes, expected: int) -> None:
    assert status(request_head) == expected


def test_origins() -> None:
    same, listed = Rules(same_origin=True), Rules(origins=places_of(["http://b.example", "https://c.example:444"]))
    assert "101" in answer(head(Origin="http://x.example"))
    assert "101" in answer(head(), same)
    assert "101" in answer(head(Origin="http://A.example:8080"), same)
    assert status(head(Origin="http://a.example"), same) == 403
    assert "101" in answer(head(Origin="https://a.example", Host="a.example"), Rules(tls=True, same_origin=True))
    assert "101" in answer(head(Origin="http://a.example:80", Host="a.example"), same)
    for scheme in ("https", "ftp", "ws", ""):
        origin = f"{scheme}:" * bool(scheme) + "//a.example:80"
        assert status(head(Origin=origin, Host="a.example:80"), same) == 403, scheme
    assert status(head(Origin="http://a.example:443", Host="a.example"), Rules(tls=True, same_origin=True)) == 403
    assert "101" in answer(head(Origin="http://b.example:80"), listed)
    assert "101" in answer(head(Origin="https://C.example:444"), listed)
    for origin in ("https://b.example", "http://c.example:444", "http://b.example.evil", "null", "http://b:%zz"):
        assert status(head(Origin=origin), listed) == 403
    assert place_of("https://x") == ("https", "x", 443)


@pytest.mark.parametrize(
    ("offer", "taken"),
    [
        ("permessage-deflate", True),
        ("permessage-deflate; client_max_window_bits", True),
        ("x-webkit-deflate-frame, permessage-deflate; server_max_window_bits=15", True),
        ("permessage-deflate; server_max_window_bits=10", False),
        ("permessage-deflate; server_max_window_bits=10, permessage-deflate", True),
        ("permessage-deflate; unknown", False),
        ("", False),
    ],
)
def test_compression_is_taken_when_both_want_it(offer: str, *, taken: bool) -> None:
    request = head(Sec_WebSocket_Extensions=offer)
    line = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
    assert (line in answer(request, Rules(compression=True))) is taken
    assert line not in answer(request)


def test_cookies_and_browsers() -> None:
    request = parse(head(Cookie='a=1; b="x=y"', User_Agent="Mozilla/5.0") + b"\r\nCookie: c=3")
    assert [request.cookie(name) for name in ("a", "b", "c", "d")] == ["1", "x=y", "3", ""]
    assert request.browser
    assert not parse(head()).browser
