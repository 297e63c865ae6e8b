from __future__ import annotations

import json

import pytest

from jetcluster.errors import ApiError
from jetcluster.objects.layout import Layout
from jetcluster.store.api import DamagedError, Msg
from tests.unit.objects.bench import Bench, digest, meta
from tests.unit.stream.fake_store import ServerOrigin

BOTH = ("$OBJ.b.>", "$O.b.C.>", "$O.b.M.>")
REAL = ("$O.b.C.>", "$O.b.M.>")


def real_object(bench: Bench, name: str, nuid: str, *chunks: bytes) -> None:
    """Writes an object as a real client does."""
    whole = b"".join(chunks)
    info = {"name": name, "bucket": "b", "nuid": nuid, "size": len(whole), "chunks": len(chunks),
            "digest": digest(whole).replace("sha", "SHA")}  # fmt: skip
    for chunk in chunks:
        bench.ingest.on_message(b"$O.b.C.%b" % nuid.encode(), b"", b"", chunk, ServerOrigin())
    subject = Layout("b", own=True, real=True).infos_of(name)[-1]
    bench.ingest.on_message(subject, b"", b"", json.dumps(info).encode(), ServerOrigin())
    bench.commit()


def names(bench: Bench) -> list[str]:
    listing = bench.bucket.catalog.listing(0, 0)
    list(listing)
    return [info["name"] for info in json.loads(listing.answer)["objects"]]


def test_deleting(bench: Bench) -> None:
    bench.put("o", b"abcdefgh", "n")
    bench.seen()
    with pytest.raises(ApiError, match="11001"):
        bench.delete("p")
    assert bench.delete("o") == {"success": True}
    assert bench.stored() == ["info.o"]
    (stone,) = bench.seen()
    assert (stone["nonce"], stone["deleted"], stone["size"], stone["chunks"], stone["digest"]) == ("n", True, 0, 0, "")
    assert bench.delete("o") == {"success": True}
    assert (bench.seen(), bench.store.last_seq) == ([], 5), "a tombstone is not deleted again"
    assert bench.bucket.catalog.find("o").deleted
    assert names(bench) == []
    assert bench.put("o", b"new", "n2")["nonce"] == "n2"
    assert names(bench) == ["o"]


@pytest.mark.parametrize("subject", ["$OBJ.b.delete.cat", "$OBJ.b.delete.Y2F0", "$JS.API.$OBJ.b.delete.cat"])
def test_delete_requests(subject: str, bench: Bench) -> None:
    if "Y2F0" in subject:
        bench.ask("$OBJ.b.info.Y2F0", meta("n", b"x", 1, "cat"))
        bench.chunk(b"x")
    else:
        bench.put("cat", b"x", "n")
    assert bench.ask(subject) == {"success": True}
    assert bench.code("$OBJ.b.delete.none") == 11001


def test_metadata_with_deleted_is_a_deletion(bench: Bench) -> None:
    bench.put("o", b"x", "n")
    assert bench.ask("$OBJ.b.info.o", meta("m", b"", 0, deleted=True)) == {"success": True}
    assert bench.stored() == ["info.o"]


def test_a_deletion_that_was_overtaken_is_worked_out_anew(bench: Bench) -> None:
    bench.put("o", b"x", "n1")
    bench.begin("n2", b"y", 1)
    bench.publish("$OBJ.b.chunks.n2", b"y")
    bench.time.advance(0)
    bench.commit(1)
    answers: list[bytes | None] = []
    bench.bucket.delete("o", answers.append)  # behind the upload's end in the log
    bench.commit()
    assert answers == [b'{"success":true}']
    assert bench.stored() == ["info.o"]
    assert bench.bucket.catalog.find("o").nonce == "n2"


def test_the_outcome_of_a_deletion_can_be_unknown(bench: Bench) -> None:
    bench.put("o", b"x", "n")
    answers: list[bytes | None] = []
    bench.bucket.delete("o", answers.append)
    (done,) = bench.proposed.values()
    bench.bucket.end()
    done(None)
    assert answers == [None]


def test_other_subjects_of_the_bucket_are_ordinary(bench: Bench) -> None:
    assert bench.ask("$OBJ.b.misc", b"x") == {"stream": "OBJ_b", "seq": 1}
    assert bench.ask("$JS.hub.API.$OBJ.b.a.b", b"x")["seq"] == 2
    assert bench.stored() == ["misc", "a.b"]
    assert bench.code("$OBJ.b.upload.n", meta("n", b"", 0)) == 11005


def test_what_the_service_tells_is_not_taken_for_an_upload(bench: Bench) -> None:
    bench.publish("$OBJ.b.info.o", meta("n", b"x", 1), origin=ServerOrigin())
    bench.commit()
    assert (bench.told(), bench.stored()) == ([], [])


@pytest.mark.parametrize("prefix", ["", "$JS.API.", "$JS.hub.API."])
def test_ways_into_the_service(prefix: str, bench: Bench) -> None:
    origin = ServerOrigin() if prefix else None
    bench.publish(f"{prefix}$OBJ.b.info.o", meta("n", b"x", 1), origin=origin)
    bench.publish(f"{prefix}$OBJ.b.chunks.n", b"x", origin=origin)
    bench.commit()
    assert bench.told()[-1]["nonce"] == "n"
    assert bench.stored() == ["chunks.n", "info.o"]


@pytest.mark.parametrize(
    ("config", "code"),
    [({"sealed": True}, 10109), ({"deny_purge": True}, 10110), ({"no_ack": True}, 11005),
     ({"subject_transform": {"src": "a", "dest": "b"}}, 11005), ({"retention": "workqueue"}, 11005)],
)  # fmt: skip
def test_streams_that_cannot_be_written_so(config: dict[str, object], code: int, bench: Bench) -> None:
    bench.put("o", b"x", "n")
    bench.configure(**config)
    bench.bucket.configure(bench.machine.rules)
    assert bench.code("$OBJ.b.info.o", meta("m", b"x", 1)) == code
    assert bench.code("$OBJ.b.chunks.m", b"x") == code
    assert bench.code("$OBJ.b.delete.o") == code
    assert names(bench) == ["o"]


def test_a_bucket_of_real_clients_is_read_only() -> None:
    bench = Bench(*REAL)
    assert bench.bucket.uploads is None
    real_object(bench, "a cat", "U", b"ab", b"c")
    info = bench.bucket.catalog.find("a cat")
    assert (info.nonce, info.fields["digest"]) == ("U", digest(b"abc"))
    assert bench.bucket.catalog.download("a cat").subject == b"$O.b.C.U"
    for subject, body in (("info.o", meta("n", b"x", 1)), ("chunks.n", b"x"), ("delete.a", b"")):
        assert bench.code(f"$OBJ.b.{subject}", body) in (11005, 11001)
    with pytest.raises(ApiError, match="bucket layout"):
        bench.delete("a cat")
    assert bench.stored() == ["$O.b.C.U", "$O.b.C.U", "$O.b.M.YSBjYXQ="]


def test_both_layouts_are_one_bucket() -> None:
    bench = Bench(*BOTH)
    bench.put("o", b"own", "n")
    real_object(bench, "o", "U", b"real")
    real_object(bench, "p", "V", b"x")
    assert bench.bucket.catalog.find("o").nonce == "U", "the newer one"
    assert names(bench) == ["o", "p"]
    bench.put("o", b"again", "n2", 9)
    assert bench.bucket.catalog.find("o").nonce == "n2"
    stone = json.loads(bench.store.queries.last_by_subject(b"$O.b.M.bw==").payload)  # type: ignore[union-attr]
    assert (stone["nuid"], stone["deleted"]) == ("U", True)
    assert sorted(bench.stored()) == ["$O.b.C.V", "$O.b.M.bw==", "$O.b.M.cA==", "chunks.n2", "info.o"]
    assert bench.delete("p") == {"success": True}
    assert bench.bucket.catalog.find("p").deleted
    assert bench.store.queries.last_by_subject(b"$O.b.M.cA==").headers == b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"  # type: ignore[union-attr]
    assert "$O.b.C.V" not in bench.stored()


def test_a_bucket_may_become_one_and_stop_being_one() -> None:
    bench = Bench("x")
    assert bench.bucket.layout is None
    bench.publish("$OBJ.b.info.o", meta("n", b"x", 1))
    bench.commit()
    assert bench.told() == []
    bench.configure("$OBJ.b.>")
    bench.bucket.configure(bench.machine.rules)
    bench.begin("n", b"x", 1)
    uploads = bench.bucket.uploads
    bench.configure("$OBJ.b.>", max_msgs=5)
    bench.bucket.configure(bench.machine.rules)
    assert bench.bucket.uploads is uploads, "other changes end no upload"
    bench.configure("x")
    bench.bucket.configure(bench.machine.rules)
    assert bench.bucket.uploads is None


def test_damage_is_no_absence(bench: Bench) -> None:
    bench.put("o", b"x", "n")

    def damaged(*_: object) -> Msg:
        raise DamagedError(1, 2)

    bench.store.queries.last_by_subject = damaged  # type: ignore[method-assign, assignment]
    assert bench.code("$OBJ.b.info.o", meta("m", b"x", 1)) == 10008
    assert bench.code("$OBJ.b.delete.o") == 10008
    assert len(bench.damage) == 2
