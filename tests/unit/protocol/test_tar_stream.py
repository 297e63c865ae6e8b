"""The tar stream of archives of format V1: what the standard library writes is read, in pieces, and what is refused."""

from __future__ import annotations

import io
import tarfile

import pytest

from jetcluster.protocol.stream_archive import ArchiveError
from jetcluster.protocol.tar_stream import MAX_EXTENDED_BYTES, TarReader
from testkit.twins.old_archive import tar

FILES = [
    ("meta.inf", b"{}"),
    ("msgs/1.blk", bytes(range(256)) * 5),
    ("msgs/2.blk", b""),
    (f"obs/{'n' * 240}/o.dat", b"x" * 512),
    ("obs/\u00fc/o.dat", b"y" * 513),
]


def read(data: bytes, step: int, reader: TarReader | None = None) -> dict[str, bytes]:
    reader = reader or TarReader()
    found: dict[str, bytes] = {}
    for start in range(0, len(data), step):
        for part in reader.feed(data[start : start + step]):
            if part is not None:
                assert part.at == len(found.get(part.name, b""))
                found[part.name] = found.get(part.name, b"") + part.data
                assert part.last == (len(found[part.name]) == part.size)
    return found


@pytest.mark.parametrize("step", [1, 7, 512, 513, 1 << 20])
def test_files_come_in_pieces(step: int) -> None:
    reader = TarReader()
    assert read(tar(FILES), step, reader) == dict(FILES)
    assert reader.finished


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_older_forms_are_read(form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as writer:
        info = tarfile.TarInfo("p" * 80 + "/msgs/1.blk" if form == tarfile.USTAR_FORMAT else "msgs/1.blk")
        info.size = 3
        writer.addfile(info, io.BytesIO(b"abc"))
    assert read(out.getvalue(), 100) == {info.name: b"abc"}


def test_a_size_may_be_binary_or_in_the_header_before() -> None:
    header = bytearray(tar([("a", b"abc")])[-512 * 2 - 1024 : -512 - 1024])
    header[124:136] = b"\x80" + (3).to_bytes(11, "big")
    assert read(_summed(header) + b"abc" + bytes(509 + 1024), 1000) == {"a": b"abc"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as writer:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"size": "4"}
        info.size = 4
        writer.addfile(info, io.BytesIO(b"abcd"))
    data = bytearray(out.getvalue())
    header = data[1024:1536]
    header[124:136] = b"00000000000\0"
    data[1024:1536] = _summed(header)
    assert read(bytes(data), 1000) == {"a": b"abcd"}


def _summed(header: bytearray) -> bytes:
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def test_a_stream_without_its_end_is_not_finished() -> None:
    whole = tar(FILES)
    for end in range(0, len(whole), 97):
        reader = TarReader()
        read(whole[:end], 512, reader)
        assert not reader.finished


def _directory() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as writer:
        info = tarfile.TarInfo("msgs")
        info.type = tarfile.DIRTYPE
        writer.addfile(info)
    return out.getvalue()


def _pax(record: bytes, size: int = 0) -> bytes:
    header = bytearray(512)
    header[:1] = b"h"
    header[124:136] = b"%011o\0" % (size or len(record))
    header[156:157] = b"x"
    return _summed(header) + record + bytes(-len(record) % 512)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"nothing of the kind" * 40, "unknown archive format"),
        (tar(FILES)[:2048] + b"\xff" * 512 * 4, "header of the tar archive is damaged"),
        (tar(FILES) + b"x" * 512, "behind the end"),
        (_directory(), "is no file"),
        (_pax(b"6 a=b\n", MAX_EXTENDED_BYTES + 1), "too long"),
        (_pax(b"7 a=b\n"), "damaged"),
        (_pax(b"0 a=b\n"), "damaged"),
        (_pax(b"x a=b\n"), "damaged"),
        (_pax(b"6 ab_\n"), "damaged"),
        (_pax(b"10 size=x\n") + tar([("a", b"")])[-1536:-1024], "damaged"),
    ],
)
def test_refused(data: bytes, text: str) -> None:
    with pytest.raises(ArchiveError, match=text):
        read(data, 300)


def test_what_a_reader_holds_is_less_than_a_block_and_its_extension() -> None:
    reader = TarReader()
    data = tar([("msgs/1.blk", bytes(1 << 20))])
    for start in range(0, len(data), 1000):
        list(reader.feed(data[start : start + 1000]))
        assert reader.held < 512
