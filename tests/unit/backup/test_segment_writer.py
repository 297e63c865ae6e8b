"""Segments that lack messages, and the reading of just those."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetcluster.backup.plan import StoredBase, StreamProgress
from jetcluster.backup.point import Blob, Segment
from jetcluster.backup.segment import unpack
from jetcluster.backup.segment_writer import Packed, SegmentWriter
from jetcluster.backup.sequences import Sequences
from tests.unit.backup.accounts import FakeAccount, FakeStream


class Written:
    """A destination of segments."""

    def __init__(self) -> None:
        self.data: dict[Segment, bytes] = {}
        self.notes: list[StreamProgress] = []

    def put_segment(self, packed: Packed) -> Segment:
        made = Segment(Blob.of(packed.data), packed.first, packed.last, packed.messages, packed.size)
        self.data[made] = packed.data
        return made

    def note(self, stream: str, progress: StreamProgress) -> None:
        self.notes.append(progress)


@given(st.sets(st.integers(1, 40)), st.sets(st.integers(1, 30)), st.integers(1, 6))
def test_what_the_segments_lack_is_read_into_its_place(live: set[int], lacking: set[int], size: int) -> None:
    stream, sink = FakeStream("S"), Written()
    stream.add(40)
    stream.delete(*(set(range(1, 41)) - live))
    account = FakeAccount(stream)
    seen = account.look("S")
    assert seen is not None and seen.live is not None
    base: list[Segment] = []
    held = sorted(seq for seq in live if seq <= 30 and seq not in lacking)
    for at in range(0, len(held), size):
        part = [stream.held[seq] for seq in held[at : at + size]]
        base.append(sink.put_segment(Packed([one.encoded() for one in part], part[0].seq, part[-1].seq, 9)))
    writer = SegmentWriter(sink, seen, StoredBase(tuple(base), (0, ""), Sequences.of(held)))
    if wanted := seen.live.without(writer.stored):
        writer.read(account, seen, wanted)
    found = [message for one in writer.segments for message in unpack(sink.data[one])]
    assert found == [stream.held[seq] for seq in sorted(live)]
    assert set(writer.stored) == live
    whole = [one for one in base if not any(one.first < seq < one.last for seq in lacking & live)]
    assert set(whole) <= set(writer.segments)
