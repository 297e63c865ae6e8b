"""Round trips of the columnar batch against the plain lists it was made of, and refusal of damaged bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.store.batch import MAX_COUNT, Batch, BatchError

SUBJECT = st.sampled_from([b"a", b"a.b", b"orders.new", b"x" * 300])
HEADERS = st.sampled_from([b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"])
MESSAGE = st.tuples(SUBJECT, HEADERS, st.binary(max_size=40))
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=30)


def columns(messages: list[tuple[bytes, bytes, bytes]]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    return [m[0] for m in messages], [m[1] for m in messages], [m[2] for m in messages]


def file_size(message: tuple[bytes, bytes, bytes]) -> int:
    subject, headers, payload = message
    return 30 + len(subject) + len(payload) + (4 + len(headers) if headers else 0)


def memory_size(message: tuple[bytes, bytes, bytes]) -> int:
    return 16 + sum(map(len, message))


@given(MESSAGES, st.sampled_from([b"", b"prefix"]))
def test_round_trip(messages: list[tuple[bytes, bytes, bytes]], prefix: bytes) -> None:
    encoded = Batch.encode(*columns(messages))
    batch = Batch.decode(prefix + encoded, len(prefix))
    assert batch.raw == encoded
    assert batch.count == len(messages)
    assert list(batch.messages()) == messages
    assert batch.subjects == list(dict.fromkeys(m[0] for m in messages))
    assert batch.has_headers == any(m[1] for m in messages)
    assert batch.body_bytes == sum(len(m[1]) + len(m[2]) for m in messages)
    assert batch.longest_headers == max(len(m[1]) for m in messages)
    assert all(batch.may_hold(part) for message in messages for part in message)
    assert not batch.may_hold(b"\xff" + encoded)
    assert batch.record_bytes() == sum(map(file_size, messages))
    assert batch.record_bytes(memory=True) == sum(map(memory_size, messages))
    for i, message in enumerate(messages):
        assert batch.subject_of(i) == batch.subjects[batch.subject_number(i)] == message[0]
        assert batch.headers_of(i) == message[1]
        assert batch.size_of(i) == len(message[1]) + len(message[2])
        assert batch.record_size(i) == file_size(message)
        assert batch.record_size(i, memory=True) == memory_size(message)
    for subject, positions in zip(batch.subjects, batch.positions(), strict=True):
        assert positions == [i for i, m in enumerate(messages) if m[0] == subject]


@given(MESSAGES, st.data())
def test_select(messages: list[tuple[bytes, bytes, bytes]], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(messages) - 1), min_size=1, unique=True))
    selected = Batch.of(*columns(messages)).select(indices)
    assert list(selected.messages()) == [messages[i] for i in indices]
    assert selected.raw == Batch.encode(*columns([messages[i] for i in indices]))


@given(MESSAGES, st.data())
def test_any_flipped_bit_is_refused(messages: list[tuple[bytes, bytes, bytes]], data: st.DataObject) -> None:
    raw = bytearray(Batch.encode(*columns(messages)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BatchError):
        Batch.decode(bytes(raw))


@given(MESSAGES, st.data())
def test_any_cut_is_refused_even_without_checksum(
    messages: list[tuple[bytes, bytes, bytes]], data: st.DataObject
) -> None:
    raw = Batch.encode(*columns(messages))
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(BatchError):
        Batch.decode(raw[:cut], verify=False)


@given(st.binary(max_size=200))
def test_garbage_is_refused(raw: bytes) -> None:
    with pytest.raises(BatchError):
        Batch.decode(raw)


def test_no_headers_given_means_none() -> None:
    batch = Batch.of([b"a", b"a"], [], [b"1", b"2"])
    assert not batch.has_headers
    assert batch.message(1) == (b"a", b"", b"2")
    assert Batch.encode([b"a"], [b""], [b""]) == Batch.encode([b"a"], [], [b""])


def test_more_than_256_subjects_and_the_largest_count() -> None:
    subjects = [b"s.%d" % (i % 40_000) for i in range(MAX_COUNT)]
    batch = Batch.decode(Batch.encode(subjects, [], [b""] * MAX_COUNT))
    assert [batch.subject_of(i) for i in range(MAX_COUNT)] == subjects
    with pytest.raises(AssertionError):
        Batch.encode([b"a"] * (MAX_COUNT + 1), [], [b""] * (MAX_COUNT + 1))


@pytest.mark.parametrize("index", [-1, 2])
def test_positions_outside_are_errors(index: int) -> None:
    batch = Batch.of([b"a", b"a"], [], [b"1", b"2"])
    with pytest.raises(IndexError):
        batch.message(index)


@pytest.mark.parametrize("headers", [[], [b"", b"NATS/1.0\r\n\r\n", b""] * 20])
@pytest.mark.parametrize("subjects", [[b"one"] * 60, [b"s%d" % (n % 17) for n in range(60)]])
@pytest.mark.parametrize("same", [True, False])
def test_first_messages_are_those_of_an_unpacked_batch(headers: list[bytes], subjects: list[bytes], same: bool) -> None:
    payloads = [bytes([n]) * (5 if same else n) for n in range(60)]
    raw = Batch.encode(subjects, headers, payloads)
    whole = list(Batch.decode(raw).unpack().messages())
    assert whole == list(zip(subjects, headers or [b""] * 60, payloads, strict=True))
    for n in range(60):
        assert Batch.decode(raw).message(n) == whole[n]
    for n in (-1, 60):
        with pytest.raises(IndexError):
            Batch.decode(raw).message(n)
