from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetcluster.protocol import headers

BLOCK = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nA: 1\r\nnats-msg-id:other\r\nA:  2\r\n\r\n"


def test_build_and_parse() -> None:
    block = headers.build([(b"A", b"1"), (b"B", b"2")])
    assert block == b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n"
    assert headers.parse(block) == [(b"A", b"1"), (b"B", b"2")]
    assert headers.build([], b"404 No Messages") == b"NATS/1.0 404 No Messages\r\n\r\n"


def test_get_is_exact() -> None:
    assert headers.get(BLOCK, b"Nats-Msg-Id") == b"7"
    assert headers.get(BLOCK, b"nats-msg-id") == b"other"
    assert headers.get(BLOCK, b"Msg-Id") is None
    assert headers.get(BLOCK, b"Nats-Msg") is None
    assert headers.get(BLOCK, b"A") == b"1"
    assert headers.get_all(BLOCK, b"A") == [b"1", b"2"]
    assert headers.get(b"", b"A") is None
    assert headers.get(b"NATS/1.0\r\nA: cut off", b"A") == b"cut off"


def test_status() -> None:
    assert headers.status(b"NATS/1.0 503\r\n\r\n") == (503, b"")
    assert headers.status(b"NATS/1.0 404 No Messages\r\n\r\n") == (404, b"No Messages")
    assert headers.status(BLOCK) == (0, b"")
    assert headers.status(b"junk") == (0, b"")
    assert headers.without_status(b"NATS/1.0 404 No Messages\r\nA: 1\r\n\r\n") == b"NATS/1.0\r\nA: 1\r\n\r\n"
    assert headers.without_status(BLOCK) == BLOCK


def test_set_and_remove() -> None:
    assert headers.set_header(b"", b"K", b"v") == b"NATS/1.0\r\nK: v\r\n\r\n"
    assert headers.set_header(BLOCK, b"A", b"3") == (b"NATS/1.0\r\nNats-Msg-Id: 7\r\nnats-msg-id:other\r\nA: 3\r\n\r\n")
    assert headers.remove(BLOCK, b"missing") == BLOCK
    assert headers.remove(BLOCK, b"A") == b"NATS/1.0\r\nNats-Msg-Id: 7\r\nnats-msg-id:other\r\n\r\n"


def test_what_is_removed_is_not_found_behind_a_bare_line_feed() -> None:
    for block in (
        b"NATS/1.0\nK: 1\r\n\r\n",
        b"NATS/1.0\r\nA: 1\nK: 1\r\nK: 2\r\n\r\n",
        b"NATS/1.0\r\nA: 1\nK: 1\nK: 2\r\n\r\n",
    ):
        assert headers.get(block, b"K") is not None
        assert headers.get(headers.remove(block, b"K"), b"K") is None
        assert headers.get(headers.set_header(block, b"K", b"3"), b"K") == b"3"
    assert headers.remove(b"NATS/1.0\r\nA: 1\nK: 1\r\nB: 2\r\n\r\n", b"K") == b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n"


def test_no_value_is_hidden_by_a_block_that_is_none() -> None:
    for block in (b"junk\r\nK: 1\r\nK:2\r\n\r\n", b"NATS/1.0\r\nA: 1\nK: 1\r\nK: 2"):
        assert headers.get_all(block, b"K") == [b"1", b"2"]
    assert headers.get_all(b"", b"K") == []


def test_well_formed() -> None:
    assert headers.is_well_formed(BLOCK)
    assert headers.is_well_formed(b"NATS/1.0\r\n\r\n")
    assert not headers.is_well_formed(b"NATS/1.0\r\nno colon\r\n\r\n")
    assert not headers.is_well_formed(b"NATS/1.0\r\nA: 1\r\n")
    assert not headers.is_well_formed(b"junk\r\n\r\n")


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=5))
def test_garbage_is_survived(block: bytes, key: bytes) -> None:
    for text in (block, b"NATS/1.0\r\n" + block):
        headers.get(text, key)
        headers.parse(text)
        headers.status(text)
        headers.get_all(text, key)
        assert headers.get(headers.remove(text, key), key) is None
        headers.is_well_formed(text)


def test_the_beginning_of_a_block_is_of_whole_lines() -> None:
    block = headers.build([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    assert headers.beginning(block, len(block)) == block
    assert headers.beginning(block, 20) == b"NATS/1.0\r\na: 1\r\n"
    assert headers.parse(headers.beginning(block, 25)) == [(b"a", b"1"), (b"b", b"2")][: 1 + (25 >= 24)]
