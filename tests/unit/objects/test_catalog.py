from __future__ import annotations

import json

import pytest

from jetcluster.errors import ApiError
from jetcluster.objects import catalog
from jetcluster.objects.catalog import Content
from jetcluster.store.batch import Batch
from tests.unit.objects.bench import Bench, meta


def page(bench: Bench, offset: int = 0, limit: int = 0) -> dict:  # type: ignore[type-arg]
    listing = bench.bucket.catalog.listing(offset, limit)
    list(listing)
    return json.loads(listing.answer)  # type: ignore[no-any-return]


def filled(count: int, **more: object) -> Bench:
    bench = Bench()
    infos = [
        json.dumps({"name": f"o{n:03}", "nonce": f"n{n}", "chunks": 0, "size": 0, "digest": "", **more}).encode()
        for n in reversed(range(count))
    ]
    subjects = [b"$OBJ.b.info.o%03d" % n for n in reversed(range(count))]
    bench.store.append(Batch.of(subjects, [], infos), 1, 10**18)
    return bench


def test_lists_are_sorted_by_name_and_come_in_pages() -> None:
    bench = filled(7)
    whole = page(bench)
    assert (whole["bucket"], whole["total"]) == ("b", 7)
    assert "offset" not in whole
    assert [info["name"] for info in whole["objects"]] == [f"o{n:03}" for n in range(7)]
    assert whole["objects"][0]["mtime"].startswith("2001-")
    part = page(bench, 5, 3)
    assert (part["total"], part["offset"], part["limit"], len(part["objects"])) == (7, 5, 3, 2)
    assert page(bench, 9)["objects"] == []
    assert page(Bench()) == {"bucket": "b", "total": 0, "objects": []}


def test_a_list_that_is_too_long_says_where_it_ends() -> None:
    bench = filled(30, description="x" * 50_000)
    part = page(bench)
    assert (part["total"], part["offset"], part["limit"]) == (30, 0, 18)
    assert page(bench, 18)["objects"][0]["name"] == "o018"


def test_an_object_that_fits_into_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "LIST_BYTES", 100)
    with pytest.raises(ApiError, match="11009"):
        page(filled(1))


def test_others_run_between_the_steps_of_a_list() -> None:
    bench = filled(500)
    listing = bench.bucket.catalog.listing(0, 0)
    steps = 0
    for _ in listing:
        steps += 1
        if steps == 3:
            bench.store.purge(b"$OBJ.b.info.o499")
    assert steps == 4
    assert len(json.loads(listing.answer)["objects"]) == 499


def test_what_cannot_be_downloaded(bench: Bench) -> None:
    bench.put("o", b"abcdefgh", "n")
    download = bench.bucket.catalog.download("o")
    assert download.subject == b"$OBJ.b.chunks.n"
    assert download.head().startswith(b"NATS/1.0\r\nNats-Object-Size: 8\r\nNats-Object-Chunks: 2\r\n")
    bench.store.delete(2)
    with pytest.raises(ApiError, match="1 of 2 chunks are stored"):
        bench.bucket.catalog.download("o")
    bench.delete("o")
    with pytest.raises(ApiError, match="11006"):
        bench.bucket.catalog.download("o")
    with pytest.raises(ApiError, match="11001"):
        bench.bucket.catalog.download("p")


def test_links_have_no_content() -> None:
    bench = filled(1, options={"link": {"bucket": "b", "name": "x"}})
    with pytest.raises(ApiError, match="link"):
        bench.bucket.catalog.download("o000")


def test_garbage_is_no_object(bench: Bench) -> None:
    bench.store.append(Batch.of([b"$OBJ.b.info.o", b"$OBJ.b.info.p"], [], [b"x", b"{}"]), 1, 10**18)
    assert page(bench)["total"] == 0
    assert bench.bucket.catalog.at(b"$OBJ.b.info.o") is None


def taken(bench: Bench, name: str, size: int) -> list[list[bytes]]:
    content = Content(bench.store, bench.bucket.catalog.download(name))
    slices = []
    while not content.done:
        frames = content.take(size)
        assert all(headers == b"" for headers, _ in frames)
        slices.append([payload for _, payload in frames])
        content.hold()
    content.close()
    return slices


def test_all_chunks_in_order_and_slices(bench: Bench) -> None:
    bench.put("o", b"abcdefghij", "n")
    bench.put("p", b"other", "m")
    assert taken(bench, "o", 1 << 20) == [[b"abcd", b"efgh", b"ij"]]
    assert taken(bench, "o", 100) == [[b"abcd", b"efgh"], [b"ij"]]


def test_nothing_to_take(bench: Bench) -> None:
    bench.publish("$OBJ.b.info.o", meta("n", b"", 0))
    bench.commit()
    assert taken(bench, "o", 5) == []
