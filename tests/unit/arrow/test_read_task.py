"""A task of the source: all of its range, or an error that says what may be missing (arrow/read_task.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster import native
from jetcluster.arrow.frames import MissingFieldError
from jetcluster.arrow.planner import DataLossError, RangeTask, Target
from jetcluster.arrow.read_task import read_task
from jetcluster.stream.read.direct_get import Frame
from tests.unit.arrow.fake_server import CREATED, StreamPeer, numbered, options_for, store_of


@pytest.fixture(autouse=True, params=["compiled loops", "Python alone"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python alone":
        monkeypatch.setattr(native, "row_loops", lambda: None)
    elif native.row_loops() is None:
        pytest.skip(f"no compiled loops: {native.why_pure}")


def read(meanwhile: Callable[[StreamPeer], None], **given: object) -> list[int]:
    """Sequences 1 to 50, ten at a time; `meanwhile` happens behind the second ten."""

    def spoil(gets: int, frames: list[Frame]) -> list[Frame]:
        if gets == 2:
            meanwhile(peer)
        return frames

    with StreamPeer(store_of(numbered(60)), spoil=spoil) as peer:
        options = options_for(peer, fetchBatch=10, prefetch="false", **given)
        task = RangeTask(Target("S", "S", CREATED, "n1", ("n1",)), 1, 51, 0)
        return [seq for batch in read_task(task, options, ["seq"]) for seq in batch.column(0).to_pylist()]


def test_a_purge_while_it_is_read_is_an_error_where_it_may_have_taken_rows() -> None:
    def purge(peer: StreamPeer) -> None:
        peer.leader.delete_all(list(range(1, 31)))

    with pytest.raises(DataLossError, match="a purge removed messages up to 30 while 1 to 50 were read; some of them"):
        read(purge)
    assert read(purge, failOnDataLoss="false") == [*range(1, 21), *range(31, 51)]


def test_a_purge_of_what_was_read_already_is_no_loss() -> None:
    assert read(lambda peer: peer.leader.delete_all(list(range(1, 16)))) == list(range(1, 51))


def test_deletions_in_the_midst_are_no_loss() -> None:
    """Somebody wanted them gone; nothing in front of them is."""
    found = read(lambda peer: peer.leader.delete_all([25, 26]))
    assert found == [n for n in range(1, 51) if n not in (25, 26)]


def test_a_stream_that_is_made_anew_while_it_is_read() -> None:
    def anew(peer: StreamPeer) -> None:
        peer.created = "2026-11-23T00:00:00Z"

    with pytest.raises(DataLossError, match="S was created anew at 2026-11-23"):
        read(anew)


def test_a_message_without_a_field_is_no_answer() -> None:
    def spoil(_: int, frames: list[Frame]) -> list[Frame]:
        return [(head.replace(b"Nats-Subject: a.y", b"Nats-Object: a.y"), payload) for head, payload in frames]

    with StreamPeer(store_of(numbered(5)), spoil=spoil) as peer:
        task = RangeTask(Target("S", "S", CREATED, "n1", ("n1",)), 1, 6, 0)
        with pytest.raises(MissingFieldError, match="a message without Nats-Subject where it belongs"):
            list(read_task(task, options_for(peer), ["seq", "subject"]))


@pytest.mark.parametrize("missing", [0, 3, 8])
def test_an_answer_with_a_hole_is_asked_for_again(missing: int) -> None:
    """0: none is missing."""

    def spoil(gets: int, frames: list[Frame]) -> list[Frame]:
        return [*frames[:missing], *frames[missing + 1 :]] if gets == 2 and missing else frames

    with StreamPeer(store_of(numbered(30)), spoil=spoil) as peer:
        task = RangeTask(Target("S", "S", CREATED, "n1", ("n1",)), 1, 31, 0)
        options = options_for(peer, fetchBatch=10, prefetch="false")
        found = [seq for batch in read_task(task, options, ["seq"]) for seq in batch.column(0).to_pylist()]
        assert found == list(range(1, 31)) and peer.gets == 3 + bool(missing)


def test_batches_are_joined_and_not_above_their_size() -> None:
    with StreamPeer(store_of(numbered(60))) as peer:
        task = RangeTask(Target("S", "S", CREATED, "n1", ("n1",)), 1, 61, 0)
        found = list(read_task(task, options_for(peer, fetchBatch=10, arrowBatchRows=25), ["seq", "data"]))
        assert [batch.num_rows for batch in found] == [20, 20, 20]
        assert [value for batch in found for value in batch.column(1).to_pylist()] == [b"%d" % n for n in range(1, 61)]
