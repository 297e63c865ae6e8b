"""Rollups, the KV purge that implies one, and subject transforms."""

from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.log.bodies import Replace
from jetcluster.stream.log.commands import CommandError
from jetcluster.stream.ports import Duplicate, PublishResult
from jetcluster.stream.rules import StreamRules
from tests.unit.stream.fake_store import NaiveStore, block
from tests.unit.stream.test_machine import T0, Stream

ROLLUP = {"allow_rollup_hdrs": True}


def test_rollup_of_a_subject_and_of_everything() -> None:
    stream = Stream(**ROLLUP)
    stream.publish(*[(subject, b"", b"") for subject in "abab"])
    assert stream.one("a", "Nats-Rollup: SUB") == 5 and stream.seqs() == [2, 4, 5]
    assert stream.one("c", "Nats-Rollup: all") == 6 and stream.seqs() == [6]


def test_a_rollup_of_a_wildcard_purges_what_it_matches() -> None:
    """A bucket's purge("a.*") publishes to that very subject; seen on nats-server 2.15.2."""
    stream = Stream(**ROLLUP)
    stream.publish(*[(subject, b"", b"") for subject in ("a.1", "a.2", "b", "a.1")])
    assert stream.one("a.*", "Nats-Rollup: sub") == 5 and stream.seqs() == [3, 5]
    assert stream.one("a.1") == 6 and stream.seqs() == [3, 5, 6]


def test_rollups_inside_a_command() -> None:
    stream = Stream(**ROLLUP)
    sub, every = block("Nats-Rollup: sub"), block("Nats-Rollup: all")
    result = stream.publish(("a", b"", b""), ("b", b"", b""), ("a", sub, b""), ("c", every, b""), ("b", b"", b""))
    assert result == PublishResult(1, 5, None) and stream.seqs() == [4, 5]


def test_headers_that_mean_nothing_here_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    headers_of = Batch.headers_of

    def counted(batch: Batch, i: int) -> bytes:
        asked.append(i)
        return headers_of(batch, i)

    monkeypatch.setattr(Batch, "headers_of", counted)
    stream = Stream(**ROLLUP, max_msgs_per_subject=2)
    stream.publish(*[("a", block("Trace: 1"), b"") for _ in range(50)])
    assert stream.seqs() == [49, 50] and len(asked) <= 1
    stream.publish(*[("a", block("Trace: 1", f"Nats-Msg-Id: {n}"), b"") for n in (1, 2, 1)])
    assert stream.seqs() == [51, 52]


@pytest.mark.parametrize(
    ("config", "value", "text"),
    [
        ({}, "sub", "rollup not permitted"),
        ({"allow_rollup_hdrs": True, "deny_purge": True}, "sub", "rollup not permitted"),
        (ROLLUP, "Foo", 'rollup value invalid: "foo"'),
    ],
)
def test_rollup_refused(config: dict[str, object], value: str, text: str) -> None:
    assert Stream(**config).one("a", f"Nats-Rollup: {value}") == (10111, text)


def test_a_rollup_after_the_limits() -> None:
    stream = Stream(**ROLLUP, max_msgs=2)
    stream.publish(("a", b"", b""), ("b", b"", b""))
    assert stream.one("b", "Nats-Rollup: sub") == 3 and stream.seqs() == [3]


@pytest.mark.parametrize(
    ("name", "config", "fields", "left"),
    [
        ("KV_b", ROLLUP, ["KV-Operation: PURGE"], [3]),
        ("KV_b", ROLLUP, ["KV-Operation: PURGE", "Nats-Msg-Id: 1"], [3]),
        ("KV_b", ROLLUP, ["KV-Operation: DEL"], [1, 2, 3]),
        ("KV_b", ROLLUP, ["X-KV-Operation: PURGE"], [1, 2, 3]),
        ("KV_b", {}, ["KV-Operation: PURGE"], [1, 2, 3]),
        ("KV_b", {"allow_rollup_hdrs": True, "deny_purge": True}, ["KV-Operation: PURGE"], [1, 2, 3]),
        ("other", ROLLUP, ["KV-Operation: PURGE"], [1, 2, 3]),
    ],
)
def test_kv_purge_implies_a_rollup(name: str, config: dict[str, object], fields: list[str], left: list[int]) -> None:
    """A purge marker of a key-value bucket rolls its subject up."""
    store = NaiveStore()
    machine = StreamMachine(name, StreamRules.from_config({}), store)
    machine.apply(1, 1, commands.encode_update_config(0, {"name": name, **config}))
    headers = block(*fields)
    for index, each in enumerate([b"", b"", headers], 2):
        machine.apply(index, 1, commands.encode_publish(T0, Batch.encode([b"k"], [each], [b""])))
    assert sorted(store.rows) == left
    assert store.rows[3].headers == headers


TRANSFORM = {"src": "a.*", "dest": "t.{{partition(3,1)}}.$1"}


def test_subjects_are_mapped_before_anything_else() -> None:
    stream = Stream(subject_transform=TRANSFORM, max_msgs_per_subject=1)
    stream.publish(("a.x", b"", b"1"), ("other", b"", b"2"), ("a.y", block("X: 1"), b"3"), ("a.x", b"", b"4"))
    found = {m.seq: (m.subject, m.headers, m.payload) for m in stream.store.rows.values()}
    x, y = (next(s for s, _, p in found.values() if p == payload) for payload in (b"4", b"3"))
    assert x.startswith(b"t.") and x.endswith(b".x") and y.endswith(b".y")
    assert found == {2: (b"other", b"", b"2"), 3: (y, block("X: 1"), b"3"), 4: (x, b"", b"4")}
    assert stream.one("a.x", "Nats-Expected-Last-Subject-Sequence: 0") == (10071, "wrong last sequence: 4")
    assert stream.one("a.x", "Nats-Expected-Last-Subject-Sequence: 4") == 5


def test_a_batch_that_the_transform_does_not_touch_is_stored_as_it_came() -> None:
    stream = Stream(subject_transform=TRANSFORM)
    assert stream.publish(("b", b"", b"1"), ("a.b.c", b"", b"2")) == PublishResult(1, 2, None)
    assert [m.subject for m in stream.store.rows.values()] == [b"b", b"a.b.c"]
    assert stream.one("a.x", "Nats-Msg-Id: 1") == 3 and stream.one("a.x", "Nats-Msg-Id: 1") == Duplicate(3)


def test_random_is_the_same_on_every_replica() -> None:
    streams = [Stream(subject_transform={"src": "a", "dest": "t.{{random(5)}}"}) for _ in range(2)]
    for stream in streams:
        stream.publish(*[("a", b"", b"")] * 20)
    found = [[m.subject for m in stream.store.rows.values()] for stream in streams]
    assert found[0] == found[1] and len(set(found[0])) == 5


def test_an_update_turns_a_transform_on_and_off() -> None:
    stream = Stream()
    for config in ({"subject_transform": {"src": "a", "dest": "b"}}, {}):
        stream.one("a")
        stream.apply(commands.encode_update_config(0, {"name": "S", **config}))
    stream.one("a")
    assert [m.subject for m in stream.store.rows.values()] == [b"a", b"b", b"a"]


NEW = Batch.encode([b"o.info"], [], [b"new"])


def replace(stream: Stream, guards: list[tuple[bytes, int]], purges: list[bytes], batch: bytes = b"") -> object:
    result = stream.apply(commands.encode_replace(T0, guards, purges, batch))
    return (result.err_code, result.description) if isinstance(result, ApiError) else result


def filled(**config: object) -> Stream:
    """1 o.info, 2 and 3 o.old, 4 o.up, 5 x."""
    stream = Stream(**config)
    for subject in ("o.info", "o.old", "o.old", "o.up", "x"):
        stream.one(subject)
    return stream


def test_round_trip() -> None:
    decoded = commands.decode(commands.encode_replace(7, [(b"a", 5), (b"bb", 0)], [b"c.>", b"d"], NEW))
    assert isinstance(decoded, Replace)
    assert decoded.batch is not None
    assert (decoded.ts, decoded.guards, decoded.purges) == (7, [(b"a", 5), (b"bb", 0)], [b"c.>", b"d"])
    assert list(decoded.batch.messages()) == [(b"o.info", b"", b"new")]
    assert commands.decode(commands.encode_replace(7, [], [])) == Replace(7, [], [], None)


def test_bytes_that_are_cut_off_are_an_error() -> None:
    whole = commands.encode_replace(7, [(b"aa", 5)], [b"cc"], NEW)
    plain = commands.encode_replace(7, [(b"aa", 5)], [b"cc"])
    for raw in [plain[:end] for end in range(10, len(plain))] + [whole[:-1], whole + b"x"]:
        with pytest.raises(CommandError):
            commands.decode(raw)


def test_old_messages_go_and_new_ones_come_in_one_step() -> None:
    stream = filled()
    assert replace(stream, [(b"o.up", 4), (b"o.info", 1), (b"o.none", 0)], [b"o.up", b"o.info", b"o.old"], NEW) == 6
    assert stream.seqs() == [5, 6]
    assert stream.store.rows[6].payload == b"new"
    stream.restart()
    assert replace(stream, [], [b"o.>"]) == 1
    assert stream.seqs() == [5]


@pytest.mark.parametrize("guard", [(b"o.up", 3), (b"o.up", 0), (b"o.none", 1)])
def test_nothing_happens_when_a_guard_does_not_hold(guard: tuple[bytes, int]) -> None:
    stream = filled()
    actual = 4 if guard[0] == b"o.up" else 0
    assert replace(stream, [(b"x", 5), guard], [b"o.>"], NEW) == (10071, f"wrong last sequence: {actual}")
    assert stream.seqs() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"sealed": True}, (10109, "invalid operation on sealed stream")),
        ({"deny_purge": True}, (10110, "stream purge not permitted")),
    ],
)
def test_streams_that_keep_everything(config: dict[str, object], error: tuple[int, str]) -> None:
    stream = filled()
    stream.apply(commands.encode_update_config(1, {"name": "S", **config}))
    assert replace(stream, [], [b"o.>"], NEW) == error
    assert stream.seqs() == [1, 2, 3, 4, 5]


def test_a_full_stream_still_replaces() -> None:
    stream = filled(discard="new", max_msgs=5, max_bytes=sum(36 + n for n in (0, 0, 0, 0, 0)))
    count = len(stream.seqs())
    long = Batch.encode([b"o.info"], [], [b"n" * 500])
    assert replace(stream, [], [b"o.info"], long) == count + 1
    assert stream.store.rows[count + 1].payload == b"n" * 500
    assert stream.one("x") != count + 2, "and is as full as before for everybody else"
