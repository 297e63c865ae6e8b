from __future__ import annotations

from jetcluster.consumer.key_rows import KeyRows


def test_only_changes_are_written() -> None:
    rows: dict[bytes, bytes] = {}
    keys: KeyRows[int] = KeyRows(lambda number: b"%d" % number)
    assert keys.add(1) and keys.add(2) and not keys.add(2)
    keys.write(b"p", rows.__setitem__, rows.__delitem__)
    assert rows == {b"p1": b"", b"p2": b""}
    assert keys.discard(1) and not keys.discard(1) and keys.add(3)
    written: list[bytes] = []
    keys.write(b"p", lambda key, _: written.append(key), rows.__delitem__)
    assert written == [b"p3"] and set(rows) == {b"p2"}


def test_clear_deletes_all_rows() -> None:
    keys: KeyRows[bytes] = KeyRows(bytes)
    keys.add(b"x")
    deleted: list[bytes] = []
    keys.clear()
    keys.write(b"p", lambda _, __: None, deleted.append)
    assert deleted == [b"px"] and not keys.keys


def test_remove_names_rows_that_are_there_or_are_to_go() -> None:
    keys: KeyRows[bytes] = KeyRows(bytes)
    keys.add(b"x")
    keys.add(b"y")
    keys.write(b"p", lambda _, __: None, lambda _: None)
    keys.discard(b"x")
    deleted: list[bytes] = []
    keys.remove(b"p", deleted.append)
    assert sorted(deleted) == [b"px", b"py"]
