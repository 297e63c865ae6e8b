from __future__ import annotations

import json

import pytest

from jetcluster.errors import ApiError
from jetcluster.objects import catalog
from jetcluster.objects.catalog import Content
from jetcluster.store.batch import Batch
from tests.unit.objects.rig import Rig, meta


def page(rig: Rig, offset: int = 0, limit: int = 0) -> dict:  # type: ignore[type-arg]
    listing = rig.bucket.catalog.listing(offset, limit)
    list(listing)
    return json.loads(listing.answer)  # type: ignore[no-any-return]


def filled(count: int, **more: object) -> Rig:
    rig = Rig()
    infos = [
        json.dumps({"name": f"o{n:03}", "nonce": f"n{n}", "chunks": 0, "size": 0, "digest": "", **more}).encode()
        for n in reversed(range(count))
    ]
    subjects = [b"$OBJ.b.info.o%03d" % n for n in reversed(range(count))]
    rig.store.append(Batch.of(subjects, [], infos), 1, 10**18)
    return rig


def test_lists_are_sorted_by_name_and_come_in_pages() -> None:
    rig = filled(7)
    whole = page(rig)
    assert (whole["bucket"], whole["total"]) == ("b", 7)
    assert "offset" not in whole
    assert [info["name"] for info in whole["objects"]] == [f"o{n:03}" for n in range(7)]
    assert whole["objects"][0]["mtime"].startswith("2001-")
    part = page(rig, 5, 3)
    assert (part["total"], part["offset"], part["limit"], len(part["objects"])) == (7, 5, 3, 2)
    assert page(rig, 9)["objects"] == []
    assert page(Rig()) == {"bucket": "b", "total": 0, "objects": []}


def test_a_list_that_is_too_long_says_where_it_ends() -> None:
    rig = filled(30, description="x" * 50_000)
    part = page(rig)
    assert (part["total"], part["offset"], part["limit"]) == (30, 0, 18)
    assert page(rig, 18)["objects"][0]["name"] == "o018"


def test_an_object_that_fits_into_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "LIST_BYTES", 100)
    with pytest.raises(ApiError, match="11009"):
        page(filled(1))


def test_others_run_between_the_steps_of_a_list() -> None:
    rig = filled(500)
    listing = rig.bucket.catalog.listing(0, 0)
    steps = 0
    for _ in listing:
        steps += 1
        if steps == 3:
            rig.store.purge(b"$OBJ.b.info.o499")
    assert steps == 4
    assert len(json.loads(listing.answer)["objects"]) == 499


def test_what_cannot_be_downloaded(rig: Rig) -> None:
    rig.put("o", b"abcdefgh", "n")
    download = rig.bucket.catalog.download("o")
    assert download.subject == b"$OBJ.b.chunks.n"
    assert download.head().startswith(b"NATS/1.0\r\nNats-Object-Size: 8\r\nNats-Object-Chunks: 2\r\n")
    rig.store.delete(2)
    with pytest.raises(ApiError, match="1 of 2 chunks are stored"):
        rig.bucket.catalog.download("o")
    rig.delete("o")
    with pytest.raises(ApiError, match="11006"):
        rig.bucket.catalog.download("o")
    with pytest.raises(ApiError, match="11001"):
        rig.bucket.catalog.download("p")


def test_links_have_no_content() -> None:
    rig = filled(1, options={"link": {"bucket": "b", "name": "x"}})
    with pytest.raises(ApiError, match="link"):
        rig.bucket.catalog.download("o000")


def test_garbage_is_no_object(rig: Rig) -> None:
    rig.store.append(Batch.of([b"$OBJ.b.info.o", b"$OBJ.b.info.p"], [], [b"x", b"{}"]), 1, 10**18)
    assert page(rig)["total"] == 0
    assert rig.bucket.catalog.at(b"$OBJ.b.info.o") is None


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


def test_all_chunks_in_order_and_slices(rig: Rig) -> None:
    rig.put("o", b"abcdefghij", "n")
    rig.put("p", b"other", "m")
    assert taken(rig, "o", 1 << 20) == [[b"abcd", b"efgh", b"ij"]]
    assert taken(rig, "o", 100) == [[b"abcd", b"efgh"], [b"ij"]]


def test_nothing_to_take(rig: Rig) -> None:
    rig.publish("$OBJ.b.info.o", meta("n", b"", 0))
    rig.commit()
    assert taken(rig, "o", 5) == []
