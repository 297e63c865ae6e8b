from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.stream.apply.publish import Replace
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import CommandError
from tests.unit.stream.test_machine import T0, Stream

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
