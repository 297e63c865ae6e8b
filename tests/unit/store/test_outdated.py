"""Ranges that are to be compacted after erasures: none is forgotten, and they stay few."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jetcluster.store import keys
from jetcluster.store.kv import KvDamagedError, KvError
from jetcluster.store.outdated import AT_ONCE, BYTES_AT_ONCE, MAX_RANGES, RECORD, Outdated, Range
from testkit.twins.mem_kv import MemKv


class Unreadable(MemKv):
    def __init__(self, error: KvError | None) -> None:
        super().__init__()
        self.error = error

    def get(self, key: bytes) -> bytes | None:
        if self.error is not None:
            raise self.error
        return super().get(key)


def blocks(count: int, stream: int = 3, step: int = 100) -> list[bytes]:
    return [keys.block(stream, step * number + 1) for number in range(count)]


def no_files() -> list[dict[str, Any]]:
    return []


def noted(added: list[bytes]) -> Outdated:
    outdated = Outdated()
    for key in added:
        outdated.add(key)
    return outdated


def all_of(outdated: Outdated, kv: MemKv) -> list[list[Range]]:
    found = []
    while taken := outdated.take(kv, no_files):
        found.append(taken)
        outdated.done()
    return found


def test_each_is_taken_once_the_oldest_first() -> None:
    added = blocks(2 * AT_ONCE + 3)
    random.Random(1).shuffle(added)
    outdated = noted(added)
    lates = []
    found = []
    while taken := outdated.take(MemKv(), no_files):
        lates.append(outdated.late)
        found.append(taken)
        outdated.done()
    assert found == [
        sorted((key, key + b"\0") for key in added[at : at + AT_ONCE]) for at in range(0, len(added), AT_ONCE)
    ]
    assert lates == [True, True, False]


def test_what_failed_comes_first_and_what_is_outdated_again_meanwhile_comes_again() -> None:
    added = blocks(AT_ONCE + 2)
    outdated, kv = noted(added), MemKv()
    first = outdated.take(kv, no_files)
    outdated.failed()
    assert outdated.take(kv, no_files) == first
    outdated.add(added[0])
    outdated.done()
    assert [start for start, _ in outdated.take(kv, no_files)] == [added[0], *added[-2:]]


def test_of_very_many_neighbours_become_one_and_none_is_left_out() -> None:
    rng = random.Random(2)
    added = [*blocks(3), *(keys.block(rng.choice((5, 6)), rng.randint(1, 1 << 40)) for _ in range(5_000))]
    rng.shuffle(added)
    outdated = noted(added)
    found = all_of(outdated, MemKv())
    ranges = [found_range for taken in found for found_range in taken]
    assert MAX_RANGES < len(ranges) <= 2 * MAX_RANGES
    assert all(any(start <= key < end for start, end in ranges) for key in added)
    assert {(start[:5], end[:5]) for start, end in ranges} == {
        (prefix, prefix) for prefix in (keys.stream_prefix(keys.BLOCK, stream) for stream in (3, 5, 6))
    }, "none goes across streams"
    widths = sum(keys.seq_of(end[:-1]) - keys.seq_of(start) for start, end in ranges if start < end[:-1])
    assert widths < 0.9 * (2 << 40), "the widest gaps lie between them"


def test_another_process_goes_on_with_what_is_left() -> None:
    added = blocks(AT_ONCE + 2)
    outdated, kv = noted(added), MemKv()
    assert outdated.changed
    outdated.save(kv)
    assert not outdated.changed
    outdated.take(kv, no_files)
    outdated.save(kv)
    again = Outdated()
    new = keys.block(9, 1)
    again.add(new)
    again.save(kv)
    assert all_of(again, kv) == [
        [(key, key + b"\0") for key in added[:AT_ONCE]],
        [(key, key + b"\0") for key in (*added[AT_ONCE:], new)],
    ]
    assert again.changed
    again.save(kv)
    assert kv.get(RECORD) is None


def test_a_record_that_is_cut_off_counts_as_far_as_it_goes() -> None:
    added, kv = blocks(3), MemKv()
    noted(added).save(kv)
    record = kv.get(RECORD)
    assert record is not None
    for size in range(len(record) + 1):
        kv.put(RECORD, record[:size])
        taken = Outdated().take(kv, no_files)
        assert taken == [(key, key + b"\0") for key in added[: size * 3 // len(record)]]


@pytest.mark.parametrize("damaged", [True, False])
def test_a_record_that_cannot_be_read_is_replaced_only_when_it_is_damaged(damaged: bool) -> None:
    older, newer = blocks(2)
    kv = Unreadable(None)
    noted([older]).save(kv)
    kv.error = KvDamagedError("rot") if damaged else KvError("the disk")
    outdated = noted([newer])
    outdated.save(kv)
    assert outdated.changed is not damaged
    kv.error = None
    outdated.save(kv)
    assert [start for start, _ in Outdated().take(kv, no_files)] == ([newer] if damaged else [older, newer])


def files(*tables: tuple[int, int], size: int = BYTES_AT_ONCE // 4) -> list[dict[str, Any]]:
    """Table files by the numbers of their first and their last block."""
    added = blocks(100)
    return [
        {"name": f"/{number}.sst", "size": size, "start_key": added[first], "end_key": added[last]}
        for number, (first, last) in enumerate(tables)
    ]


def parts(outdated: Outdated, tables: list[dict[str, Any]], kv: MemKv | None = None) -> list[list[tuple[int, int]]]:
    """The ranges of each take until nothing is left, as numbers of blocks."""
    added, found = blocks(100), []
    while taken := outdated.take(kv or MemKv(), lambda: tables):
        found.append([(added.index(start), added.index(end)) for start, end in taken])
        outdated.done()
    return found


def test_a_long_range_is_taken_in_parts_that_are_no_larger_than_some_files() -> None:
    added = blocks(100)
    tables = files(*((at, at + 4) for at in range(0, 100, 5)))
    outdated = Outdated()
    outdated.add(added[12], added[67])
    outdated.add(added[80], added[82])
    found = parts(outdated, tables)
    assert found == [[(12, 30)], [(30, 50)], [(50, 67)], [(80, 82)]]
    outdated.add(added[12], added[13])
    outdated.add(added[40], added[67])
    assert parts(outdated, tables) == [[(12, 13), (40, 55)], [(55, 67)]]


def test_files_that_are_larger_are_taken_too() -> None:
    added = blocks(100)
    outdated = Outdated()
    outdated.add(added[0], added[60])
    outdated.add(added[70], added[71])
    tables = files((0, 99), (0, 99), (0, 50), (51, 99), size=BYTES_AT_ONCE)
    assert parts(outdated, tables) == [[(0, 51)], [(51, 60), (70, 71)]]


def test_what_goes_on_is_one_range_and_a_longer_one_replaces_a_shorter_one() -> None:
    added = blocks(100)
    outdated = Outdated()
    for number in range(20):
        outdated.add(added[number], added[number + 1])
    outdated.add(added[40], added[42])
    outdated.add(added[40], added[41])
    assert parts(outdated, []) == [[(0, 20), (40, 42)]]


def test_what_is_left_of_a_range_is_there_for_another_process() -> None:
    added, kv = blocks(100), MemKv()
    tables = files(*((at, at + 4) for at in range(0, 100, 5)))
    outdated = Outdated()
    outdated.add(added[12], added[67])
    outdated.take(kv, lambda: tables)
    assert outdated.late
    outdated.done()
    outdated.save(kv)
    assert parts(Outdated(), tables, kv) == [[(30, 50)], [(50, 67)]]
