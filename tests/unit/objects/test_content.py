from __future__ import annotations

from jetcluster.objects.content import Content
from tests.unit.objects.rig import Rig, meta


def taken(rig: Rig, name: str, size: int) -> list[list[bytes]]:
    content = Content(rig.store, rig.bucket.catalog.download(name))
    slices = []
    while not content.done:
        frames = content.take(size)
        assert all(headers == b"" for headers, _ in frames)
        slices.append([payload for _, payload in frames])
        content.hold()
    content.close()
    return slices


def test_all_chunks_in_order_and_slices() -> None:
    rig = Rig()
    rig.put("o", b"abcdefghij", "n")
    rig.put("p", b"other", "m")
    assert taken(rig, "o", 1 << 20) == [[b"abcd", b"efgh", b"ij"]]
    assert taken(rig, "o", 100) == [[b"abcd", b"efgh"], [b"ij"]]


def test_nothing_to_take() -> None:
    rig = Rig()
    rig.publish("$OBJ.b.info.o", meta("n", b"", 0))
    rig.commit()
    assert taken(rig, "o", 5) == []
