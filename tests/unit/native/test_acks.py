"""Compiled reading of acks, and compiled ack subjects, equal those of Python."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster import native
from jetcluster.consumer.owner.ack_subject import Renderer, prefix
from jetcluster.protocol.bus import Outgoing
from jetcluster.store.api import Columns
from testkit.native import python_alone
from tests.unit.native.takers import DELIVERED, acks_taken

pytestmark = [
    pytest.mark.skipif(native.read_acks is None, reason=f"no compiled loops: {native.why_pure}"),
    pytest.mark.thorough,
]

tokens = st.one_of(
    st.integers(-2, 25).map(b"%d".__mod__),
    st.sampled_from([b"", b"x", b"+5", b"5_0", b"007", b" 5", b"9" * 18, b"9" * 19, b"9" * 40, b"5x"]),
)
plain = st.integers(1, DELIVERED).map(lambda seq: b"$JS.ACK.S.C.1.%d.%d.17.0" % (seq, seq))
strange = st.lists(tokens, min_size=5, max_size=5).map(lambda parts: b".".join([b"$JS.ACK.S.C", *parts]))
words = st.sampled_from(
    [b"", b"+ACK", b"+OK"] * 4 + [b"-NAK", b"+WPI", b"+TERM", b"+NXT", b"+ACKx", b"+O", b"-NAK {}", b"x"]
)
replies = st.sampled_from([b"", b"", b"_INBOX.a.1"])
acks = st.tuples(st.one_of(plain, plain, plain, strange), replies, st.just(b""), words)


@pytest.mark.thorough
@settings(max_examples=1500, deadline=None)
@given(st.lists(acks, min_size=1, max_size=12))
def test_many_acks_are_taken_like_one_by_one(messages: list[Outgoing]) -> None:
    assert acks_taken(messages, together=True) == acks_taken(messages, together=False)
    longer = [(subject.replace(b"S.C.", b"_.01234567.S.C."), *rest) for subject, *rest in messages]
    assert acks_taken(longer, together=True, v2=True) == acks_taken(longer, together=False, v2=True)


def test_plain_acks_are_read_together() -> None:
    assert native.read_acks is not None
    messages = [(b"$JS.ACK.S.C.1.%d.3.4.5" % seq, b"r" if seq == 2 else b"", b"", b"+ACK") for seq in (3, 2, 1)]
    other = (b"$JS.ACK.S.C.1.4.3.4.5", b"", b"", b"-NAK")
    assert native.read_acks([*messages, other, *messages], 4, 5) == ([3, 2, 1], [b"r"])
    assert native.read_acks([*messages, other], 2, 5) == ([], [])
    for wrong in ((b"a", b"", b""), None, ("a", b"", b"", b""), (b"a", b"", b"", None), [b"a", b"", b"", b""]):
        with pytest.raises(TypeError):
            native.read_acks([messages[0], wrong], 4, 5)


sequences = st.integers(0, (1 << 64) - 1)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)


@settings(max_examples=500)
@given(
    st.sampled_from([b"S", b"a%d", b"x" * 300]), st.lists(st.tuples(sequences, sequences, numbers, numbers), max_size=8)
)
def test_ack_subjects_are_equal(stream: bytes, rows: list[tuple[int, int, int, int]]) -> None:
    seqs, cseqs, times, pending = ([row[column] for row in rows] for column in range(4))
    columns = Columns(seqs, times, [b"s"] * len(rows), [b""] * len(rows), [b"p"] * len(rows))
    compiled = Renderer(prefix(stream, b"C")).first(columns, cseqs, pending)
    with python_alone():
        assert Renderer(prefix(stream, b"C")).first(columns, cseqs, pending) == compiled


def test_columns_of_different_lengths_are_an_error() -> None:
    assert native.ack_subjects is not None
    with pytest.raises(ValueError):
        native.ack_subjects(b"p.", [1, 2], [1], [1], [1])
