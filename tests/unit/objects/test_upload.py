from __future__ import annotations

from hashlib import sha256

import pytest

from jetcluster.objects.metadata import parse_meta
from jetcluster.objects.upload import Upload, UploadState, end_of_upload, removal_of_upload
from jetcluster.stream.log import commands
from jetcluster.stream.log.bodies import Replace
from tests.unit.objects.rig import Rig, meta


def upload(size: int = 10, chunks: int = 3) -> Upload:
    made = Upload(parse_meta(meta("n", b"x" * size, chunks), "b", b"o"), b"$OBJ.b.info.o", b"r", 7)
    made.record_seq = 1
    return made


@pytest.mark.parametrize(
    ("count", "in_flight", "size", "in_flight_bytes", "length", "fits"),
    [
        (0, 0, 0, 0, 10, True),
        (0, 0, 0, 0, 11, False),
        (1, 1, 3, 3, 4, True),
        (1, 1, 3, 3, 5, False),
        (2, 1, 3, 3, 0, False),
        (3, 0, 3, 0, 0, False),
    ],
)
def test_what_fits(count: int, in_flight: int, size: int, in_flight_bytes: int, length: int, fits: bool) -> None:
    one = upload()
    one.count, one.in_flight, one.size, one.in_flight_bytes = count, in_flight, size, in_flight_bytes
    assert one.fits(length, 0) is fits


def test_while_it_is_read_again_everything_but_the_last_chunk_fits() -> None:
    one = upload()
    one.scanning = True
    assert one.fits(1 << 30, 1)
    assert not one.fits(0, 2)
    one.in_flight = 1
    assert not one.fits(0, 1)


def test_taking() -> None:
    one = upload(5, 2)
    one.take(4, b"abc")
    assert (one.full, one.mismatch()) == (False, "1 chunks instead of 2")
    one.take(9, b"d")
    assert (one.full, one.last_seq, one.scanned, one.mismatch()) == (True, 9, 9, "4 bytes instead of 5")
    one.size = 5
    assert one.mismatch() == ""
    assert one.sha.digest() == sha256(b"abcd").digest()


def test_idle() -> None:
    one = upload()
    assert one.idle
    for name, value in (("scanning", True), ("in_flight", 1), ("record_seq", 0), ("state", UploadState.COMPLETE)):
        one = upload()
        setattr(one, name, value)
        assert not one.idle, name


def decoded(command: bytes) -> Replace:
    found = commands.decode(command)
    assert isinstance(found, Replace)
    return found


def test_the_end_of_an_upload_depends_on_all_that_it_replaces(rig: Rig) -> None:
    rig.put("cat", b"x", "old")  # 1 record, 2 chunk, 3 info
    rig.begin("new", b"yy", 2, "cat")
    rig.chunk(b"y", "new")
    uploads, layout = rig.bucket.uploads, rig.bucket.layout
    assert uploads is not None
    assert layout is not None
    upload = uploads.by_nonce["new"]
    command = decoded(end_of_upload(layout, rig.store, rig.bucket.catalog, upload, b"INFO", 7))
    own = b"$OBJ.b."
    assert command.guards == [
        (own + b"upload.new", 4), (own + b"chunks.new", 5), (own + b"info.cat", 3), (own + b"info.Y2F0", 0),
    ]  # fmt: skip
    assert command.purges == [own + b"upload.new", own + b"info.cat", own + b"chunks.old"]
    assert command.batch is not None
    assert list(command.batch.messages()) == [(own + b"info.cat", b"", b"INFO")]

    command = decoded(removal_of_upload(layout, rig.store, upload, 7))
    assert (command.guards, command.batch) == ([(own + b"upload.new", 4)], None)
    assert command.purges == [own + b"upload.new", own + b"chunks.new"]
