from __future__ import annotations

from jetcluster.objects import replacement
from jetcluster.stream import commands
from jetcluster.stream.replacing import Replace
from tests.unit.objects.rig import Rig


def decoded(command: bytes) -> Replace:
    found = commands.decode(command)
    assert isinstance(found, Replace)
    return found


def test_the_end_of_an_upload_depends_on_all_that_it_replaces() -> None:
    rig = Rig()
    rig.put("cat", b"x", "old")  # 1 record, 2 chunk, 3 info
    rig.begin("new", b"yy", 2, "cat")
    rig.chunk(b"y", "new")
    uploads, layout = rig.bucket.uploads, rig.bucket.layout
    assert uploads is not None
    assert layout is not None
    upload = uploads.by_nonce["new"]
    command = decoded(replacement.end_of_upload(layout, rig.store, rig.bucket.catalog, upload, b"INFO", 7))
    own = b"$OBJ.b."
    assert command.guards == [
        (own + b"upload.new", 4), (own + b"chunks.new", 5), (own + b"info.cat", 3), (own + b"info.Y2F0", 0),
    ]  # fmt: skip
    assert command.purges == [own + b"upload.new", own + b"info.cat", own + b"chunks.old"]
    assert command.batch is not None
    assert list(command.batch.messages()) == [(own + b"info.cat", b"", b"INFO")]

    command = decoded(replacement.removal_of_upload(layout, rig.store, upload, 7))
    assert (command.guards, command.batch) == ([(own + b"upload.new", 4)], None)
    assert command.purges == [own + b"upload.new", own + b"chunks.new"]
