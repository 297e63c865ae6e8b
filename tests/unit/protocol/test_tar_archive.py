"""Archives of format V1: which messages of their blocks are there, by what tells so, and what is refused."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from jetcluster.budget import at_once
from jetcluster.protocol import stream_archive, tar_archive
from jetcluster.protocol.stream_archive import ArchiveEntry, ArchiveError
from jetcluster.protocol.tar_archive import TarMessages, TarSurvey
from testkit.twins import old_archive
from testkit.twins.old_archive import File, consumer, consumer_state, erased, index, meta, record, tar, tombstone

HEAD: list[File] = [("meta.inf", meta("S")), ("meta.sum", b"0" * 16)]


def surveyed(files: list[File], step: int = 1 << 20) -> TarSurvey:
    survey = TarSurvey()
    data = tar(files)
    for at in range(0, len(data), step):
        for _ in survey.feed(data[at : at + step]):
            pass
    assert survey.finished
    return survey


def messages(files: list[File], step: int = 1 << 20) -> tuple[list[ArchiveEntry], int]:
    """Those that are there, and the last sequence."""
    survey = surveyed(files, step)
    plan = at_once(survey.plan())
    reading, data = TarMessages(plan), tar(files)
    found = [one for at in range(0, len(data), step) for one in reading.feed(data[at : at + step])]
    return [one for one in found if one is not None], survey.last_seq


def seqs(files: list[File]) -> list[int]:
    return [one.seq for one in messages(files)[0]]


def blocks(*contents: bytes) -> list[File]:
    return [(f"msgs/{number}.blk", content) for number, content in enumerate(contents, 1)]


FIRST = record(1, 10, b"s", b"a") + record(2, 11, b"s", b"b") + erased(3, 12, 9) + record(5, 13, b"s", b"c")
SECOND = record(6, 14, b"s", b"d") + tombstone(2, 11) + record(7, 15, b"s", b"e") + tombstone(7, 15)


@pytest.mark.parametrize("step", [1, 500, 1 << 20])
def test_blocks_alone_tell_what_is_erased_and_what_has_a_tombstone(step: int) -> None:
    found, last = messages([*HEAD, *blocks(FIRST, SECOND)], step)
    assert [(one.seq, one.ts, one.name, one.payload) for one in found] == [
        (1, 10, b"s", b"a"),
        (5, 13, b"s", b"c"),
        (6, 14, b"s", b"d"),
    ]
    assert last == 7, "the last message is gone, and its sequence is not used again"


def test_an_index_that_is_as_old_as_the_blocks_decides() -> None:
    told = index([(1, 2, 5, (5,)), (2, 6, 7, ())], 9, 2, SECOND[-8:])
    files = [*HEAD, *blocks(FIRST, SECOND), ("msgs/index.db", told)]
    assert seqs(files) == [2, 6, 7]
    assert messages(files)[1] == 9


def test_a_block_that_an_index_does_not_have_is_gone() -> None:
    told = index([(2, 6, 7, ())], 7, 2, SECOND[-8:])
    assert seqs([*HEAD, *blocks(FIRST, SECOND), ("msgs/index.db", told)]) == [6, 7]


@pytest.mark.parametrize(
    "told",
    [
        index([(1, 2, 5, (5,)), (2, 6, 7, ())], 9, 2, b"otherone"),
        index([(1, 2, 5, (5,)), (2, 6, 7, ())], 9, 1, FIRST[-8:]),
        index([(1, 2, 5, (5,)), (2, 6, 7, ()), (3, 8, 9, ())], 9, 2, SECOND[-8:]),
    ],
)
def test_an_index_of_another_moment_only_tells_the_last_sequence(told: bytes) -> None:
    found, last = messages([*HEAD, *blocks(FIRST, SECOND), ("msgs/index.db", told)])
    assert ([one.seq for one in found], last) == ([1, 5, 6], 9)


@pytest.mark.parametrize("told", [b"", b"\x0b\x09" + bytes(200), index([(1, 2, 5, ())], 9, 2, SECOND[-8:])[:-17]])
def test_an_unreadable_index_is_as_good_as_none(told: bytes) -> None:
    found, last = messages([*HEAD, *blocks(FIRST, SECOND), ("msgs/index.db", told)])
    assert ([one.seq for one in found], last) == ([1, 5, 6], 7)


def test_indexes_of_single_blocks_decide_before_2_10() -> None:
    of_first = old_archive.block_index(2, 5, (5,), FIRST[-8:])
    stale = old_archive.block_index(6, 6, (), b"otherone")
    files = [*HEAD]
    for file, told in zip(blocks(FIRST, SECOND), (of_first, stale), strict=True):
        files += [
            (file[0].replace("blk", "idx"), told),
            (file[0].replace("blk", "fss"), b"what it has by subject"),
            file,
        ]
    assert seqs(files) == [6], "2 has a tombstone, and 5 is deleted by the first index"
    empty = [*HEAD, ("msgs/1.idx", old_archive.block_index(21, 20, (), b"whatever")), ("msgs/1.blk", b"")]
    assert messages(empty) == ([], 20)


def test_a_sequence_that_comes_twice_counts_once() -> None:
    twice = record(1, 10, b"s", b"a") + erased(2, 11) + record(2, 12, b"s", b"again") + record(1, 13, b"s", b"again")
    assert [one.payload for one in messages([*HEAD, *blocks(twice)])[0]] == [b"a"]


def test_an_empty_stream() -> None:
    assert messages(HEAD) == ([], 0)
    assert messages([*HEAD, *blocks(b""), ("msgs/index.db", index([(1, 1, 0, ())], 0, 1, bytes(8)))]) == ([], 0)
    purged = index([(1, 21, 20, ())], 20, 1, erased(20, 1)[-8:])
    assert messages([*HEAD, *blocks(erased(20, 1)), ("msgs/index.db", purged)]) == ([], 20)


def test_consumers_may_come_at_any_place() -> None:
    one, other = (consumer(name, consumer_state((1, 1), (2, 2)), {"filter_subject": "s"}) for name in ("C", "D"))
    windows = [(name.replace("/", "\\"), content) for name, content in other]
    survey = surveyed([one[0], *windows, *HEAD, *blocks(FIRST), *one[1:]])
    assert [found.name for found in survey.consumers()] == ["C", "D"]
    assert b'"filter_subject"' in next(survey.consumers()).config
    with pytest.raises(ArchiveError, match="not all files of consumer C"):
        list(surveyed([*HEAD, *one[:-1]]).consumers())


def test_files_of_other_names_are_passed_over() -> None:
    more = [("msgs/thw.db", b"x" * 5000), ("msgs/1.blk.tmp", b"y" * 100), ("obs/C/meta.sum", b"z"), ("key", b"")]
    assert seqs([*HEAD, *more, *blocks(FIRST)]) == [1, 2, 5]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (blocks(FIRST), "has no meta.inf"),
        ([*HEAD, ("msgs/2.blk", FIRST), ("msgs/1.blk", FIRST)], "blocks out of order"),
        ([*HEAD, ("msgs/1.blk", FIRST[:-1])], "damaged|ends within"),
        ([*HEAD, ("msgs/1.blk", FIRST + b"\0" * 10)], "msgs/1.blk ends within"),
        ([*HEAD, ("errors.txt", b"no such disk")], "could not complete the archive: no such disk"),
        ([("meta.inf", bytes(tar_archive.MAX_META_BYTES + 1))], "meta.inf of 1048577 bytes"),
        ([*HEAD, ("obs/C/o.dat", bytes((8 << 20) + 1))], "o.dat of 8388609 bytes"),
    ],
)
def test_refused(files: list[File], text: str) -> None:
    with pytest.raises(ArchiveError, match=text):
        at_once(surveyed(files).plan())


def test_what_is_held_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_archive, "MAX_BLOCKS", 3)
    with pytest.raises(ArchiveError, match="too many message blocks"):
        surveyed([*HEAD, *blocks(b"", b"", b"", b"")])
    with pytest.raises(ArchiveError, match="too many message blocks"):
        surveyed([*HEAD, *((f"msgs/{n}.idx", old_archive.block_index(1, 2, (), b"8" * 8)) for n in range(4))])
    monkeypatch.setattr(stream_archive, "MAX_CONSUMERS_BYTES", 3000)
    with pytest.raises(ArchiveError, match="too many consumers"):
        surveyed([*HEAD, *(file for n in range(5) for file in consumer(f"C{n}", consumer_state((1, 1), (1, 1))))])
    many = b"".join(tombstone(seq, 1) for seq in range(1, 1 << 20, 4096))
    assert surveyed([*HEAD, *blocks(many)]).held > 256 * 256


@dataclass
class OldStore:
    """A model of an old server's store: blocks, what is there, and the index that it would write."""

    rng: random.Random
    blocks: list[bytearray] = field(default_factory=lambda: [bytearray()])
    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Sequence -> its block, and where in it its record is."""
    there: dict[int, bytes] = field(default_factory=dict)
    seq: int = 0
    by_limits: set[int] = field(default_factory=set)
    """Removed without a tombstone."""

    def write(self, data: bytes) -> tuple[int, int, int]:
        if len(self.blocks[-1]) > 400:
            self.blocks.append(bytearray())
        start = len(self.blocks[-1])
        self.blocks[-1] += data
        return len(self.blocks) - 1, start, len(data)

    def store(self) -> None:
        self.seq += 1
        payload = self.rng.randbytes(self.rng.randrange(60))
        headers = b"NATS/1.0\r\nA: b\r\n\r\n" if self.rng.random() < 0.3 else b""
        self.places[self.seq] = self.write(record(self.seq, 1000 + self.seq, b"s", payload, headers))
        self.there[self.seq] = payload

    def remove(self, seq: int, way: str) -> None:
        del self.there[seq]
        if way == "limits":
            self.by_limits.add(seq)
            return
        if way == "erase":
            block, start, size = self.places[seq]
            self.blocks[block][start : start + size] = erased(seq, 0, size - 30)
        self.write(tombstone(seq, 1000 + seq))

    def step(self) -> None:
        if self.rng.random() < 0.6 or not self.there:
            self.store()
            return
        way = self.rng.choice(["tombstone", "erase", "limits"])
        self.remove(min(self.there) if way == "limits" else self.rng.choice(sorted(self.there)), way)

    def index(self) -> bytes:
        told = []
        for block in range(len(self.blocks)):
            mine = [seq for seq, (number, _, _) in self.places.items() if number == block]
            kept = [seq for seq in mine if seq in self.there]
            if kept:
                holes = tuple(seq for seq in range(kept[0], kept[-1]) if seq not in self.there)
                told.append((block + 1, kept[0], kept[-1], holes))
        return index(told, self.seq, len(self.blocks), bytes(self.blocks[-1][-8:]), {b"s": len(self.there)})

    def files(self, *, indexed: bool) -> list[File]:
        found = [*HEAD, *blocks(*(bytes(one) for one in self.blocks))]
        return [*found, ("msgs/index.db", self.index())] if indexed else found


@pytest.mark.parametrize("seed", range(12))
def test_a_store_of_any_history_is_what_it_was(seed: int) -> None:
    rng = random.Random(seed)
    store = OldStore(rng)
    for _ in range(rng.randrange(1, 250)):
        store.step()
    found, last = messages(store.files(indexed=True), rng.choice([77, 1 << 20]))
    assert {one.seq: one.payload for one in found} == store.there
    assert last == store.seq
    found, last = messages(store.files(indexed=False))
    assert {one.seq for one in found} == store.there.keys() | store.by_limits, "which the limits remove once more"
    assert last == store.seq


def test_random_bytes_raise_nothing_but_the_one_error() -> None:
    rng = random.Random(7)
    store = OldStore(rng)
    for _ in range(60):
        store.step()
    whole = tar([*store.files(indexed=True), *consumer("C", consumer_state((1, 1), (3, 3), [(2, 2, 1)]))])
    outcomes = {"read": 0, "refused": 0, "not complete": 0}
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        try:
            survey = TarSurvey()
            for _ in survey.feed(bytes(data)):
                pass
            if not survey.finished:
                outcomes["not complete"] += 1
                continue
            list(survey.consumers())
            list(TarMessages(at_once(survey.plan())).feed(bytes(data)))
        except ArchiveError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
    assert min(outcomes.values()) > 10, outcomes


def test_a_survey_goes_in_steps() -> None:
    data = tar([*HEAD, *blocks(b"".join(record(seq, seq, b"s", b"") for seq in range(1, 20_001)))])
    assert sum(1 for _ in TarSurvey().feed(data)) > 20_000 // 300
    survey = surveyed([*HEAD])
    assert sum(1 for one in TarMessages(at_once(survey.plan())).feed(data) if one is None) > 20_000 // 300
