from __future__ import annotations

import pytest

from jetcluster.store import keys


@pytest.mark.parametrize("stream", [0, 1, 255, 256, 0xFFFF_FFFF])
@pytest.mark.parametrize("kind", [keys.BLOCK, keys.INFO, keys.POSTING, keys.STATE, keys.SIDE])
def test_a_streams_keys_lie_between_its_ends(kind: int, stream: int) -> None:
    prefix, end = keys.stream_prefix(kind, stream), keys.stream_end(kind, stream)
    assert prefix < prefix + b"\xff" * 20 < end
    assert end <= keys.stream_prefix(kind + 1, 0)


def test_order_of_numbers_is_order_of_bytes() -> None:
    seqs = [0, 1, 255, 256, 1 << 32, keys.MAX_SEQ]
    for make in (lambda seq: keys.block(1, seq), lambda seq: keys.posting_prefix(1, b"a") + keys.seq_suffix(seq)):
        made = [make(seq) for seq in seqs]
        assert made == sorted(made)
        assert [keys.seq_of(key) for key in made] == seqs


@pytest.mark.parametrize("subject", [b"a", b"a.b", b"a\x00" + bytes(8), b"\xff" * 300])
def test_no_subject_has_keys_among_anothers(subject: bytes) -> None:
    prefix = keys.posting_prefix(1, subject)
    low, high = prefix + keys.seq_suffix(0), prefix + keys.seq_suffix(keys.MAX_SEQ)
    assert keys.posting_subject(low) == subject
    for other in (subject + b"\x00", subject + bytes(8), subject[:-1] + b"\x00", b"b", subject + b".x"):
        for seq in (0, 1, keys.MAX_SEQ):
            key = keys.posting_prefix(1, other) + keys.seq_suffix(seq)
            assert other == subject or not low <= key <= high


@pytest.mark.parametrize("table", [0, 1, 255])
def test_side_tables_do_not_overlap(table: int) -> None:
    assert keys.side(1, table, b"") < keys.side(1, table, b"\xff" * 9) < keys.side_end(1, table)
    assert keys.side_end(1, table) <= keys.side(2, 0, b"")
