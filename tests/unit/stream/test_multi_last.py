"""Direct Gets with multi_last: the last messages of many subjects (stream/read/direct_get.py)."""

from __future__ import annotations

import json
from collections.abc import Generator

import pytest

from jetcluster.store.batch import Batch
from jetcluster.stream.read.direct_get import Answer, DirectGet
from tests.unit.stream.direct_gets import T0, WHEN, ask, field, frames_of, numbered, pages, status
from tests.unit.stream.fake_store import NaiveStore

# multi_last: acceptance check 5


def test_multi_last() -> None:
    store = numbered(99, ("foo.a", "foo.b", "foo.c"))
    frames = ask(store, multi_last=["foo.*"])
    assert pages(frames) == [(97, 2, 0), (98, 1, 97), (99, 0, 98), (0, 0, 99)]
    assert frames[-1][0].endswith(b"Nats-Last-Sequence: 99\r\nNats-UpTo-Sequence: 99\r\n\r\n")
    frames = ask(store, multi_last=["foo.*"], up_to_seq=3)
    assert [payload for _, payload in frames] == [b"1", b"2", b"3", b""]
    assert field(frames[-1][0], "Nats-UpTo-Sequence") == 3


def test_multi_last_filters_may_overlap() -> None:
    store = numbered(9, ("foo.a", "foo.b", "bar"))
    assert [p for _, p in ask(store, multi_last=["foo.a", "foo.*", "foo.*", "nothing", ">"])] == [b"7", b"8", b"9", b""]


def test_multi_last_beyond_the_end_of_the_stream() -> None:
    frames = ask(numbered(3), multi_last=["foo"], up_to_seq=50)
    assert frames[0][1] == b"3" and field(frames[-1][0], "Nats-UpTo-Sequence") == 3
    assert field(ask(numbered(3), multi_last=["foo"], up_to_seq=3)[-1][0], "Nats-UpTo-Sequence") == 3
    assert (
        field(ask(numbered(3), multi_last=["foo"], up_to_time="2099-01-01T00:00:00Z")[-1][0], "Nats-UpTo-Sequence") == 3
    )


def test_pages_beyond_the_end_of_the_stream_are_of_one_moment() -> None:
    store = numbered(10, tuple(f"foo.{i}" for i in range(10)))
    first = ask(store, multi_last=["foo.*"], batch=4, up_to_seq=999)
    told, last = (field(first[-1][0], name) for name in ("Nats-UpTo-Sequence", "Nats-Last-Sequence"))
    store.append(Batch.of([b"foo.7", b"foo.new"], [], [b"later", b"later"]), 11, T0 + 10**9)
    rest = ask(store, multi_last=["foo.*"], seq=last + 1, up_to_seq=told)
    assert [p for _, p in first[:-1] + rest[:-1]] == [b"%d" % (i + 1) for i in range(10)]


def test_what_comes_while_it_is_looked_for_is_left_out_beyond_what_is_asked_for() -> None:
    store = numbered(4, ("a", "b"))
    steps = DirectGet("S", store).open(b'{"multi_last": ["*"], "up_to_seq": 5}')
    assert isinstance(steps, Generator)
    next(steps)
    store.append(Batch.of([b"a", b"b", b"c"], [], [b"5", b"6", b"7"]), 5, T0 + 10**9)
    frames = list(frames_of(_run(steps)))
    assert [p for _, p in frames] == [b"4", b"5", b""] and field(frames[-1][0], "Nats-UpTo-Sequence") == 5


def _run(steps: Generator[None, None, Answer]) -> Answer:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: Answer = stop.value
            return answer


def test_multi_last_up_to_a_sequence_that_older_messages_of_some_subjects_reach() -> None:
    store = numbered(9, ("a", "b", "c"))
    store.delete(2)
    assert [p for _, p in ask(store, multi_last=["a", "b", "c"], up_to_seq=4)] == [b"3", b"4", b""]


def test_multi_last_up_to_time_without_the_instant() -> None:
    """nats-server 2.15.2 leaves the instant out. The choice is asked for with every request, since a reload may change
    it."""
    store, excludes = numbered(6, ("a", "b")), [True]
    getter = DirectGet("S", store, excludes_instant=lambda: excludes[0])

    def payloads(when: str) -> list[bytes]:
        body = json.dumps({"multi_last": ["*"], "up_to_time": when}).encode()
        return [payload for _, payload in frames_of(getter.answer(body))]

    assert payloads(f"{WHEN}.000002Z") == payloads(f"{WHEN}.000001999Z") == [b"1", b"2", b""]
    assert payloads(f"{WHEN}.000002001Z") == [b"2", b"3", b""]
    assert payloads("2035-01-01T00:00:00Z") == [b"5", b"6", b""]
    assert status(list(frames_of(getter.answer(b'{"multi_last":["*"],"up_to_time":"%b"}' % f"{WHEN}Z".encode())))) == (
        b"404 No Results"
    )
    excludes[0] = False
    assert payloads(f"{WHEN}.000002Z") == [b"2", b"3", b""]


def test_multi_last_up_to_time_includes_the_instant() -> None:
    store = numbered(6, ("a", "b"))
    assert [p for _, p in ask(store, multi_last=["*"], up_to_time=f"{WHEN}.000002Z")] == [b"2", b"3", b""]
    assert [p for _, p in ask(store, multi_last=["*"], up_to_time=f"{WHEN}.000001999Z")] == [b"1", b"2", b""]
    assert [p for _, p in ask(store, multi_last=["*"], up_to_time=f"{WHEN}Z")] == [b"1", b""]
    assert [p for _, p in ask(store, multi_last=["*"], up_to_time="2035-01-01T00:00:00Z")] == [b"5", b"6", b""]


@pytest.mark.parametrize(("subjects", "refused"), [(1024, False), (1025, True)])
def test_multi_last_may_match_1024_subjects(subjects: int, refused: bool) -> None:
    store = NaiveStore()
    store.append(Batch.of([b"s.%d" % i for i in range(subjects)], [], [b""] * subjects), 1, T0)
    store.last_seqs = lambda filter, up_to=None, limit=None: list(range(1, subjects + 1))  # type: ignore[method-assign]
    frames = list(frames_of(DirectGet("S", store).answer(b'{"multi_last":["s.*"]}')))
    if refused:
        assert status(frames) == b"413 Too Many Results"
    else:
        assert len(frames) == 1025


def test_multi_last_pages_while_writes_continue() -> None:
    subjects = tuple(f"k.{i}" for i in range(50))
    store = numbered(50, subjects)
    seen: list[int] = []
    seq, ceiling = 0, 0
    for page in range(5):
        frames = ask(store, multi_last=["k.*"], batch=10, seq=seq, up_to_seq=ceiling)
        got = pages(frames)
        seen += [each for each, _, _ in got[:-1]]
        assert [pending for _, pending, _ in got] == [*range(49 - 10 * page, 39 - 10 * page, -1), 40 - 10 * page]
        seq = got[-1][2] + 1
        ceiling = field(frames[-1][0], "Nats-UpTo-Sequence")
        store.append(Batch.of([b"k.0", b"new"], [], [b"", b""]), store.last_seq + 1, store.last_ts + 1)
    assert seen == list(range(1, 51))


def test_multi_last_with_every_match_below_seq_is_just_the_end() -> None:
    assert pages(ask(numbered(3), multi_last=["foo"], seq=10)) == [(0, 0, 0)]
