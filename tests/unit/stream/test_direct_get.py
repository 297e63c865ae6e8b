from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.model import times
from jetcluster.store.api import DamagedError, Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.read import direct_get
from jetcluster.stream.read.direct_get import DirectGet, Frame, GetReply
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.direct_gets import T0, WHEN, ask, frames_of, numbered, pages, status, store_of
from tests.unit.stream.fake_store import NaiveStore, NaiveView, block

# replies of a single get: 1.6


def test_headers_of_a_message_without_own_headers() -> None:
    assert ask(numbered(3), seq=2) == [
        (
            f"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: foo\r\nNats-Sequence: 2\r\n"
            f"Nats-Time-Stamp: {WHEN}.000001Z\r\n\r\n".encode(),
            b"2",
        )
    ]


def test_stored_headers_come_first_and_unchanged() -> None:
    store = store_of(("d.h", block("X-A: 1", "x-a:2", "X-A: 3"), b"x"))
    assert ask(store, last_by_subj="d.h") == [
        (
            f"NATS/1.0\r\nX-A: 1\r\nx-a:2\r\nX-A: 3\r\nNats-Stream: S\r\nNats-Subject: d.h\r\nNats-Sequence: 1\r\n"
            f"Nats-Time-Stamp: {WHEN}Z\r\n\r\n".encode(),
            b"x",
        )
    ]


def test_stored_metadata_does_not_hide_the_real_one() -> None:
    names = ["Stream", "Subject", "Sequence", "Time-Stamp", "Num-Pending", "Last-Sequence"]
    store = store_of(("a", block("Nats-Msg-Id: 7", *[f"Nats-{name}: 99" for name in names]), b""))
    ((headers, _),) = ask(store, seq=1)
    assert b"99" not in headers and b"Nats-Num-Pending" not in headers
    assert headers.startswith(b"NATS/1.0\r\nNats-Msg-Id: 7\r\nNats-Stream: S\r\n")


def test_garbage_in_place_of_headers_still_gives_a_header_block() -> None:
    store = store_of(("a", b"garbage", b"x"))
    assert ask(store, seq=1)[0][0].startswith(b"NATS/1.0\r\nNats-Stream: S\r\n")


def test_no_hdr() -> None:
    store = numbered(3)
    assert ask(store, seq=2, no_hdr=True) == [(b"", b"2")]
    frames = ask(store, seq=1, batch=2, no_hdr=True)
    assert frames[:2] == [(b"", b"1"), (b"", b"2")]
    assert pages(frames[2:]) == [(0, 1, 2)]
    assert ask(store, multi_last=["foo"], no_hdr=True)[0] == (b"", b"3")


# status lines: 1.3, 1.7


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (b"", b"408 Empty Request"),
        (b"{}", b"408 Empty Request"),
        (b'{"batch":2}', b"408 Empty Request"),
        (b'{"batch":2,"max_bytes":5}', b"408 Empty Request"),
        (b'{"up_to_seq":2}', b"408 Empty Request"),
        (b'{"multi_last":[]}', b"408 Empty Request"),
        (b'{"seq":"x"}', b"408 Malformed Request"),
        (b'{"seq":1}}', b"408 Malformed Request"),
        (b'{"seq":1,"last_by_subj":"foo"}', b"408 Bad Request"),
        (b'{"last_by_subj":"foo","batch":1}', b"408 Bad Request"),
        (b'{"seq":1,"batch":-1}', b"408 Bad Request"),
        (b'{"seq":9}', b"404 Message Not Found"),
        (b'{"seq":2}', b"404 Message Not Found"),
        (b'{"last_by_subj":"bar"}', b"404 Message Not Found"),
        (b'{"seq":9,"batch":5}', b"404 Message Not Found"),
        (b'{"next_by_subj":"bar","batch":5}', b"404 Message Not Found"),
        (b'{"start_time":"2030-01-01T00:00:00Z"}', b"404 Message Not Found"),
        (b'{"multi_last":["bar"]}', b"404 No Results"),
        (b'{"multi_last":["foo"],"up_to_time":"2020-01-01T00:00:00Z"}', b"404 No Results"),
    ],
)
def test_status_lines(payload: bytes, line: bytes) -> None:
    store = numbered(3)
    store.delete(2)
    assert status(list(frames_of(DirectGet("S", store).answer(payload)))) == line


@pytest.mark.parametrize("fields", [
    {"seq": 1}, {"last_by_subj": ">"}, {"next_by_subj": ">"}, {"seq": 1, "batch": 2},
    {"start_time": "2020-01-01T00:00:00Z"}, {"multi_last": [">"]},
])  # fmt: skip
def test_empty_stream(fields: dict[str, object]) -> None:
    expected = b"404 No Results" if "multi_last" in fields else b"404 Message Not Found"
    assert status(ask(NaiveStore(), **fields)) == expected


def test_bad_request_is_28_bytes() -> None:
    assert len(direct_get.BAD_REQUEST[0][0]) == 28


@pytest.mark.parametrize(("level", "refused"), [("5", False), ("1", False), ("6", True), ("x", True), ("-1", True)])
def test_required_api_level(level: str, refused: bool) -> None:
    getter, headers = DirectGet("S", numbered(1)), block(f"Nats-Required-Api-Level: {level}")
    for frames in (getter.answer(b'{"seq":1}', headers), getter.answer_subject(b"foo", b"", headers)):
        assert (frames == direct_get.API_LEVEL_TOO_LOW) is refused
    assert getter.answer(b'{"seq":1}', block("X: 1")) == getter.answer(b'{"seq":1}')


# which message: 1.5


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"seq": 1}, b"1"),
        ({"last_by_subj": "a.x"}, b"3"),
        ({"last_by_subj": "a.*"}, b"4"),
        ({"last_by_subj": ">"}, b"4"),
        ({"next_by_subj": "a.x"}, b"1"),
        ({"next_by_subj": "a.x", "seq": 2}, b"3"),
        ({"next_by_subj": "a.*", "seq": 2}, b"2"),
        ({"start_time": f"{WHEN}.000001Z"}, b"2"),
        ({"start_time": f"{WHEN}.000001001Z"}, b"3"),
        ({"start_time": "2020-01-01T00:00:00Z"}, b"1"),
        ({"start_time": f"{WHEN}.000001Z", "next_by_subj": "a.x"}, b"3"),
        ({"seq": 1, "max_bytes": 1}, b"1"),
        ({"seq": 1, "up_to_seq": 1, "batch": 0}, b"1"),
    ],
)
def test_selection(fields: dict[str, object], payload: bytes) -> None:
    ((headers, found),) = ask(numbered(4, ("a.x", "a.y")), **fields)
    assert found == payload and b"Nats-Num-Pending" not in headers


def test_selection_starts_at_the_first_message() -> None:
    store = numbered(6)
    store.compact(4)
    assert ask(store, next_by_subj="foo", seq=1)[0][1] == b"4"
    assert [payload for _, payload in ask(store, seq=1, batch=2)] == [b"4", b"5", b""]


# subject-appended form


def ask_subject(getter: DirectGet, subject: bytes) -> bytes:
    ((_, payload),) = frames_of(getter.answer_subject(subject, b""))
    return payload


@pytest.mark.parametrize(
    ("subject", "payload", "line"),
    [
        (b"", b"", b"408 Bad Request"),
        (b"a.x", b"{}", b"408 Bad Request"),
        (b"a.x", b'{"seq":1}', b"408 Bad Request"),
        (b"a.x", b'{"batch":1}', b"408 Bad Request"),
        (b"a.x", b'{"max_bytes":1}', b"408 Bad Request"),
        (b"a.x", b'{"no_hdr":true,"x":1}', b"408 Bad Request"),
        (b"a.x", b'{"no_hdr":true,"seq":1}', b"408 Bad Request"),
        (b"a.x", b"junk", b"408 Malformed Request"),
        (b"a.z", b"", b"404 Message Not Found"),
    ],
)
def test_subject_form_status_lines(subject: bytes, payload: bytes, line: bytes) -> None:
    assert status(list(frames_of(DirectGet("S", numbered(4, ("a.x", "a.y"))).answer_subject(subject, payload)))) == line


def test_subject_form() -> None:
    getter = DirectGet("S", numbered(6, ("a.x", "a.y")))
    ((headers, payload),) = frames_of(getter.answer_subject(b"a.x", b""))
    assert payload == b"5" and b"Nats-Num-Pending" not in headers
    assert ask_subject(getter, b"a.*") == b"6"
    assert getter.answer_subject(b"a.x", b'{"no_hdr":true}') == ((b"", b"5"),)
    assert getter.answer_subject(b"a.x", b'{"no_hdr":false}') == getter.answer_subject(b"a.x", b"")


def test_last_alias_counts_the_older_messages_of_the_subject() -> None:
    getter = DirectGet("S", numbered(6, ("a.x", "a.y")))
    ((headers, _),) = frames_of(getter.answer_subject(b"a.x", b"", with_pending=True))
    assert headers.endswith(b"Z\r\nNats-Num-Pending: 2\r\n\r\n")


# batches: headers, bounds and the end of a batch


def test_batch_headers_in_order() -> None:
    frames = ask(numbered(3), seq=1, batch=2)
    assert frames[1][0].decode() == (
        f"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: foo\r\nNats-Sequence: 2\r\nNats-Time-Stamp: {WHEN}.000001Z\r\n"
        "Nats-Num-Pending: 1\r\nNats-Last-Sequence: 1\r\n\r\n"
    )
    assert frames[2] == (b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: 2\r\n\r\n", b"")


def test_batch_counts() -> None:
    store = numbered(999)
    assert pages(ask(store, next_by_subj="foo", batch=2)) == [(1, 998, 0), (2, 997, 1), (0, 997, 2)]
    assert pages(ask(store, seq=997, batch=10)) == [(997, 2, 0), (998, 1, 997), (999, 0, 998), (0, 0, 999)]


def test_batch_steps_over_deleted_messages() -> None:
    store = numbered(8)
    for seq in (3, 4, 6):
        store.delete(seq)
    assert pages(ask(store, seq=3, batch=2)) == [(5, 2, 0), (7, 1, 5), (0, 1, 7)]


def test_batch_by_subject_and_time() -> None:
    store = numbered(9, ("a.x", "a.y", "b"))
    assert [p for _, p in ask(store, next_by_subj="a.*", seq=3, batch=3)] == [b"4", b"5", b"7", b""]
    assert [p for _, p in ask(store, start_time=f"{WHEN}.000005Z", next_by_subj="b", batch=9)] == [b"6", b"9", b""]
    assert [p for _, p in ask(store, start_time=f"{WHEN}.000007Z", batch=9)] == [b"8", b"9", b""]


@pytest.mark.parametrize(("limit", "sent"), [(1, 1), (104, 1), (105, 2), (208, 2), (209, 3), (-5, 1)])
def test_max_bytes_is_checked_after_each_message(limit: int, sent: int) -> None:
    store = store_of(*[("foo", b"", b"x" * 101)] * 9)  # 104 bytes each
    assert len(ask(store, seq=1, batch=9, max_bytes=limit)) == sent + 1


def test_default_max_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_get, "MAX_BYTES", 300)
    store = store_of(*[("foo", b"", b"x" * 97)] * 9)
    assert len(ask(store, seq=1, batch=9)) == 3 + 1
    assert len(ask(store, multi_last=["foo"])) == 1 + 1


# one applied index: what the request met is what it gets


def real_store() -> BlockStore:
    """Four blocks of ten messages, subjects in turn; the third block is of one subject."""
    store = BlockStore(MemKv(), 1, memory=True)
    for first in range(1, 41, 10):
        subjects = [b"a.x"] * 10 if first == 21 else [(b"a.x", b"a.y", b"b")[i % 3] for i in range(10)]
        store.append(Batch.of(subjects, [], [b"%d" % (first + i) for i in range(10)]), first, T0 + first * 1000)
    store.delete_all([5, 6])
    return store


def everything(store: BlockStore) -> None:
    store.purge()


def rollup(store: BlockStore) -> None:
    store.append(Batch.of([b"a.x"], [], [b"new"]), 41, T0 + 41_000)
    store.purge(b"a.x", keep=1)


def eviction(store: BlockStore) -> None:
    for seq in range(41, 61):
        store.append(Batch.of([b"a.x"], [], [b"new"]), seq, T0 + seq * 1000)
        store.enforce(max_msgs=20)


def deletion(store: BlockStore) -> None:
    for seq in range(1, 41, 2):
        store.delete(seq)


def per_subject(store: BlockStore) -> None:
    subjects = [b"a.x", b"a.y", b"b"]
    store.append(Batch.of(subjects, [], [b"new"] * 3), 41, T0 + 41_000)
    store.enforce(max_per_subject=1, touched_subjects=subjects)


def appends(store: BlockStore) -> None:
    store.append(Batch.of([b"a.x", b"a.new"], [], [b"new"] * 2), 41, T0 + 41_000)


@pytest.mark.parametrize("change", [everything, rollup, eviction, deletion, per_subject, appends])
@pytest.mark.parametrize("payload", [
    b'{"seq":1,"batch":100}', b'{"seq":4,"batch":20}', b'{"next_by_subj":"a.x","batch":100}',
    b'{"next_by_subj":"a.*","batch":100}', b'{"multi_last":["a.*","b"]}', b'{"multi_last":["*.x","b"],"up_to_seq":30}',
])  # fmt: skip
def test_all_frames_are_of_the_moment_of_the_request(payload: bytes, change: Callable[[BlockStore], None]) -> None:
    expected = list(frames_of(DirectGet("S", real_store()).answer(payload)))
    for before in range(1, len(expected)):
        store = real_store()
        frames = frames_of(DirectGet("S", store).answer(payload), slice_bytes=1)
        found = [next(frames) for _ in range(before)]
        answer = DirectGet("S", store).answer(payload)
        assert isinstance(answer, GetReply)
        answer.hold()  # not even begun
        change(store)
        found += frames
        assert found == expected
        assert list(frames_of(answer)) == expected


# the same questions to the real store and to the naive one

SUBJECTS = [b"a.x", b"a.y", b"b", b"c.d.e"]
FILTERS = st.sampled_from(["a.x", "a.*", "*.*", ">", "b", "c.>", "zz", "*.d.*"])
SEQS = st.integers(0, 25)
INSTANTS = st.integers(-2, 26).map(lambda i: times.rfc3339(T0 + 1000 * i))
VALUES: dict[str, st.SearchStrategy[object]] = {
    "seq": SEQS, "last_by_subj": FILTERS, "next_by_subj": FILTERS, "batch": st.integers(0, 5),
    "max_bytes": st.integers(0, 50), "start_time": INSTANTS, "multi_last": st.lists(FILTERS, max_size=3),
    "up_to_seq": SEQS, "up_to_time": INSTANTS, "no_hdr": st.booleans(),
}  # fmt: skip
NAMES = st.sampled_from([names for count in range(len(VALUES) + 1) for names in itertools.combinations(VALUES, count)])
SIZES = st.integers(1, 6)
SUBJECT = st.sampled_from(SUBJECTS)


@st.composite
def requests_of_all_kinds(draw: st.DrawFn) -> dict[str, object]:
    return {name: draw(VALUES[name]) for name in draw(NAMES)}


@st.composite
def stored(draw: st.DrawFn) -> list[bytes]:
    return [draw(SUBJECT) for _ in range(draw(SIZES))]


@settings(max_examples=300, deadline=None)
@given(
    batches=st.lists(stored(), max_size=5),
    deleted=st.sets(st.integers(1, 25), max_size=8),
    requests=st.lists(requests_of_all_kinds(), min_size=1, max_size=10),
)
def test_both_stores_give_the_same_frames(
    batches: list[list[bytes]], deleted: set[int], requests: list[dict[str, object]]
) -> None:
    stores = (NaiveStore(), BlockStore(MemKv(), 1, memory=False))
    for store in stores:
        for subjects in batches:
            at = store.last_seq
            batch = Batch.of(subjects, [], [b"%d" % (at + i) for i in range(len(subjects))])
            store.append(batch, at + 1, T0 + 1000 * at)
        for seq in sorted(deleted):
            store.delete(seq)
    for request in requests:
        frames = ask(stores[0], **request)
        assert ask(stores[1], **request) == frames


# damage is never "not found"


class DamagedStore(NaiveStore):
    """Every read of sequence 2 finds a wrong checksum."""

    def check(self, message: Msg | None) -> Msg | None:
        if message is not None and message.seq == 2:
            raise DamagedError(2, 2)
        return message

    def get(self, seq: int) -> Msg | None:
        return self.check(super().get(seq))

    def last_by_subject(self, filter: bytes, up_to: int | None = None) -> Msg | None:
        return self.check(super().last_by_subject(filter, up_to))

    def scan(self, filter: bytes, seq: int) -> Iterator[Msg]:
        for message in super().scan(filter, seq):
            self.check(message)
            yield message

    def view(self, filter: bytes, seq: int) -> NaiveView:
        return NaiveView(super().view(filter, seq).rest, self.check)

    def view_of(self, seqs: Sequence[int]) -> NaiveView:
        return NaiveView(super().view_of(seqs).rest, self.check)


def damaged() -> DamagedStore:
    store = DamagedStore()
    store.append(Batch.of([b"a", b"b", b"c"], [], [b"1", b"2", b"3"]), 1, T0)
    return store


@pytest.mark.parametrize(
    "payload", [b'{"seq":2}', b'{"last_by_subj":"b"}', b'{"next_by_subj":"b"}', b'{"seq":2,"batch":2}']
)
def test_damage_comes_out_before_anything_is_sent(payload: bytes) -> None:
    with pytest.raises(DamagedError):
        DirectGet("S", damaged()).answer(payload)


def test_damage_in_the_middle_ends_a_batch_without_eob() -> None:
    for payload in (b'{"seq":1,"batch":3}', b'{"multi_last":["*"]}'):
        answer = DirectGet("S", damaged()).answer(payload)
        assert isinstance(answer, GetReply)
        assert [payload for _, payload in answer.take(1000)] == [b"1"]
        for _ in range(2):
            with pytest.raises(DamagedError):
                answer.take(1000)


PROOF = block("Jc-Proof: 1")


def with_proof(store: NaiveStore, body: dict[str, object], server: str = "n1") -> list[Frame]:
    return list(frames_of(DirectGet("S", store, server).answer(json.dumps(body).encode(), PROOF)))


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ({"seq": 2, "batch": 2}, b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: 3\r\n"),
        ({"seq": 9, "batch": 2}, b"NATS/1.0 404 Message Not Found\r\n"),
        ({"seq": 9}, b"NATS/1.0 404 Message Not Found\r\n"),
        ({"multi_last": ["nothing"]}, b"NATS/1.0 404 No Results\r\n"),
        (
            {"multi_last": ["foo"]},
            b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 4\r\nNats-UpTo-Sequence: 4\r\n",
        ),
    ],
)
def test_who_asks_for_a_proof_gets_how_much_is_applied_here_and_where_that_is(
    body: dict[str, object], end: bytes
) -> None:
    frames = with_proof(numbered(4), body, "n%d")
    assert frames[-1] == (end + b"Jc-Applied-Seq: 4\r\nJc-Stream: S\r\nJc-Peer: n%d\r\n\r\n", b"")
    plain = list(frames_of(DirectGet("S", numbered(4), "n1").answer(json.dumps(body).encode())))
    assert plain[-1] == (end + b"\r\n", b"") and plain[:-1] == frames[:-1], "nobody else sees a change"


def test_with_a_proof_stored_headers_come_as_they_are_with_ours_behind_them() -> None:
    stored = block("Nats-Sequence: 77", "A: b")
    ((head, _), _) = with_proof(store_of(("s", stored, b"")), {"seq": 1, "batch": 1})
    assert head.startswith(stored[:-2] + b"Nats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: 1\r\n")
