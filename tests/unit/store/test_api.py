"""Values of the store."""

from __future__ import annotations

from jetcluster.store.api import Columns, DamagedError


def test_the_head_of_columns_is_that_of_each() -> None:
    columns = Columns([1, 2, 3], [11, 12, 13], [b"a", b"b", b"c"], [b"", b"h", b""], [b"x", b"y", b"z"])
    head = columns.head(2)
    assert list(zip(*head, strict=True)) == list(zip(*columns, strict=True))[:2]
    head.seqs.append(9)
    assert columns.seqs == [1, 2, 3], "a copy"


def test_damage_says_which_sequences() -> None:
    error = DamagedError(5, 9)
    assert (error.first_seq, error.last_seq) == (5, 9) and "5..9" in str(error)
