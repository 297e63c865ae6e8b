from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.stream.lead.fast_open import MAX_FLOW, SUFFIX, FastMark, parse


def test_a_mark_tells_batch_flow_gap_mode_sequence_and_operation() -> None:
    assert parse(b"_INBOX.x.id.20.fail.7.1.$FI") == FastMark(b"_INBOX.x.id.20.fail", b"id", 20, False, 7, 1)
    assert parse(b"p.id.1.ok.1.0.$FI") == FastMark(b"p.id.1.ok", b"id", 1, True, 1, 0)
    assert parse(b"p.id.1.ok.1.2.$FI") == FastMark(b"p.id.1.ok", b"id", 1, True, 1, 2)


@pytest.mark.parametrize(
    ("flow", "messages"),
    [(b"0", 10), (b"x", 10), (b"-3", 10), (b"65535", MAX_FLOW), (b"70000", MAX_FLOW), (b"9" * 400, MAX_FLOW)],
)
def test_a_flow_that_is_none_means_ten_and_has_a_limit(flow: bytes, messages: int) -> None:
    mark = parse(b"p.id.%b.ok.1.0.$FI" % flow)
    assert mark is not None and mark.flow == messages


@pytest.mark.parametrize(
    "mark",
    [
        b".$FI", b"1.$FI", b"id.1.ok.1.0.$FI", b"p..1.ok.1.0.$FI", b"p.id.1.maybe.1.0.$FI", b"p.id.1.ok.0.1.$FI",
        b"p.id.1.ok.1.5.$FI", b"p.id.1.ok.1.-1.$FI", b"p.id.1.ok.1.x.$FI", b"p.id.1.ok.x.1.$FI",
        b"p.id.1.ok.2.0.$FI", b"p.id.1.ok.1.1.$FI", b"p.id.1.ok.1.3.$FI", b"p.id.1.ok.18446744073709551615.1.$FI",
        b"p.id.1.ok." + b"9" * 5000 + b".1.$FI", b"p.id.1.ok.2." + b"1" * 5000 + b".$FI",
        b"p" * 510 + b".id.1.ok.1.0.$FI",
    ],
)  # fmt: skip
def test_what_does_not_fit_the_pattern_is_none(mark: bytes) -> None:
    assert parse(mark) is None


def test_the_highest_sequence_leaves_room_for_the_next_one() -> None:
    mark = parse(b"p.id.1.ok.18446744073709551614.1.$FI")
    assert mark is not None and mark.seq == (1 << 64) - 2


@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"ok", b"fail", b"1", b"0", b"", b"4"])), max_size=9)
)
def test_anything_at_all_is_a_mark_or_none(tokens: list[bytes]) -> None:
    reply = b".".join(tokens) + SUFFIX
    mark = parse(reply)
    assert mark is None or (reply.startswith(mark.stem) and mark.seq >= 1 and 1 <= mark.flow <= MAX_FLOW)
