"""Messages on their way: all of them, in blobs, and counted."""

from __future__ import annotations

import pytest

from jetcluster.backup import sending as module
from jetcluster.backup.sending import Sending
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.backup.verify import Renamed, StoredStream
from jetcluster.protocol import s2, stream_archive
from tests.unit.backup.accounts import FakeStream
from tests.unit.backup.site import Site

pytestmark = pytest.mark.usefixtures("small_segments")


def test_every_message_is_sent_as_often_as_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOB_BYTES", 500)
    stream = FakeStream("S")
    stream.add(100)
    site = Site(stream)
    (point,) = site.backup().streams
    sending = Sending(StoredStream(site.storage, point), Renamed(b"S.", b"T."))
    for _ in range(2):
        blobs = list(sending.blobs())
        assert len(blobs) == 10
        frames, reader = s2.Decoder(), stream_archive.ArchiveReader()
        whole = s2.STREAM_ID + b"".join(s2.encode(stream_archive.MAGIC)) + b"".join(blobs)
        found = [one for content in frames.feed(whole) for one in reader.feed(content)]
        assert [one.seq for one in found] == list(range(1, 101))
        assert {one.name[:2] for one in found} == {b"T."}
        sending.check()
        assert len(sending.digests) == len(point.segments) > 1
    sending.digests.pop()
    with pytest.raises(DamagedBackupError, match="of 100 messages"):
        sending.check()
