from __future__ import annotations

import json

import pytest

from jetcluster.errors import ApiError
from jetcluster.objects.layout import Layout
from jetcluster.store.api import DamagedError, Msg
from tests.unit.objects.rig import Rig, digest, meta
from tests.unit.stream.fake_store import ServerOrigin

BOTH = ("$OBJ.b.>", "$O.b.C.>", "$O.b.M.>")
REAL = ("$O.b.C.>", "$O.b.M.>")


def real_object(rig: Rig, name: str, nuid: str, *chunks: bytes) -> None:
    """Writes an object as a real client does."""
    whole = b"".join(chunks)
    info = {"name": name, "bucket": "b", "nuid": nuid, "size": len(whole), "chunks": len(chunks),
            "digest": digest(whole).replace("sha", "SHA")}  # fmt: skip
    for chunk in chunks:
        rig.ingest.on_message(b"$O.b.C.%b" % nuid.encode(), b"", b"", chunk, ServerOrigin())
    subject = Layout("b", own=True, real=True).infos_of(name)[-1]
    rig.ingest.on_message(subject, b"", b"", json.dumps(info).encode(), ServerOrigin())
    rig.commit()


def names(rig: Rig) -> list[str]:
    listing = rig.bucket.catalog.listing(0, 0)
    list(listing)
    return [info["name"] for info in json.loads(listing.answer)["objects"]]


def test_deleting(rig: Rig) -> None:
    rig.put("o", b"abcdefgh", "n")
    rig.seen()
    with pytest.raises(ApiError, match="11001"):
        rig.delete("p")
    assert rig.delete("o") == {"success": True}
    assert rig.stored() == ["info.o"]
    (stone,) = rig.seen()
    assert (stone["nonce"], stone["deleted"], stone["size"], stone["chunks"], stone["digest"]) == ("n", True, 0, 0, "")
    assert rig.delete("o") == {"success": True}
    assert (rig.seen(), rig.store.last_seq) == ([], 5), "a tombstone is not deleted again"
    assert rig.bucket.catalog.find("o").deleted
    assert names(rig) == []
    assert rig.put("o", b"new", "n2")["nonce"] == "n2"
    assert names(rig) == ["o"]


@pytest.mark.parametrize("subject", ["$OBJ.b.delete.cat", "$OBJ.b.delete.Y2F0", "$JS.API.$OBJ.b.delete.cat"])
def test_delete_requests(subject: str, rig: Rig) -> None:
    if "Y2F0" in subject:
        rig.ask("$OBJ.b.info.Y2F0", meta("n", b"x", 1, "cat"))
        rig.chunk(b"x")
    else:
        rig.put("cat", b"x", "n")
    assert rig.ask(subject) == {"success": True}
    assert rig.code("$OBJ.b.delete.none") == 11001


def test_metadata_with_deleted_is_a_deletion(rig: Rig) -> None:
    rig.put("o", b"x", "n")
    assert rig.ask("$OBJ.b.info.o", meta("m", b"", 0, deleted=True)) == {"success": True}
    assert rig.stored() == ["info.o"]


def test_a_deletion_that_was_overtaken_is_worked_out_anew(rig: Rig) -> None:
    rig.put("o", b"x", "n1")
    rig.begin("n2", b"y", 1)
    rig.publish("$OBJ.b.chunks.n2", b"y")
    rig.time.advance(0)
    rig.commit(1)
    answers: list[bytes | None] = []
    rig.bucket.delete("o", answers.append)  # behind the upload's end in the log
    rig.commit()
    assert answers == [b'{"success":true}']
    assert rig.stored() == ["info.o"]
    assert rig.bucket.catalog.find("o").nonce == "n2"


def test_the_outcome_of_a_deletion_can_be_unknown(rig: Rig) -> None:
    rig.put("o", b"x", "n")
    answers: list[bytes | None] = []
    rig.bucket.delete("o", answers.append)
    (done,) = rig.proposed.values()
    rig.bucket.end()
    done(None)
    assert answers == [None]


def test_other_subjects_of_the_bucket_are_ordinary(rig: Rig) -> None:
    assert rig.ask("$OBJ.b.misc", b"x") == {"stream": "OBJ_b", "seq": 1}
    assert rig.ask("$JS.hub.API.$OBJ.b.a.b", b"x")["seq"] == 2
    assert rig.stored() == ["misc", "a.b"]
    assert rig.code("$OBJ.b.upload.n", meta("n", b"", 0)) == 11005


def test_what_the_service_tells_is_not_taken_for_an_upload(rig: Rig) -> None:
    rig.publish("$OBJ.b.info.o", meta("n", b"x", 1), origin=ServerOrigin())
    rig.commit()
    assert (rig.told(), rig.stored()) == ([], [])


@pytest.mark.parametrize("prefix", ["", "$JS.API.", "$JS.hub.API."])
def test_ways_into_the_service(prefix: str, rig: Rig) -> None:
    origin = ServerOrigin() if prefix else None
    rig.publish(f"{prefix}$OBJ.b.info.o", meta("n", b"x", 1), origin=origin)
    rig.publish(f"{prefix}$OBJ.b.chunks.n", b"x", origin=origin)
    rig.commit()
    assert rig.told()[-1]["nonce"] == "n"
    assert rig.stored() == ["chunks.n", "info.o"]


@pytest.mark.parametrize(
    ("config", "code"),
    [({"sealed": True}, 10109), ({"deny_purge": True}, 10110), ({"no_ack": True}, 11005),
     ({"subject_transform": {"src": "a", "dest": "b"}}, 11005), ({"retention": "workqueue"}, 11005)],
)  # fmt: skip
def test_streams_that_cannot_be_written_so(config: dict[str, object], code: int, rig: Rig) -> None:
    rig.put("o", b"x", "n")
    rig.configure(**config)
    rig.bucket.configure(rig.machine.rules)
    assert rig.code("$OBJ.b.info.o", meta("m", b"x", 1)) == code
    assert rig.code("$OBJ.b.chunks.m", b"x") == code
    assert rig.code("$OBJ.b.delete.o") == code
    assert names(rig) == ["o"]


def test_a_bucket_of_real_clients_is_read_only() -> None:
    rig = Rig(*REAL)
    assert rig.bucket.uploads is None
    real_object(rig, "a cat", "U", b"ab", b"c")
    info = rig.bucket.catalog.find("a cat")
    assert (info.nonce, info.fields["digest"]) == ("U", digest(b"abc"))
    assert rig.bucket.catalog.download("a cat").subject == b"$O.b.C.U"
    for subject, body in (("info.o", meta("n", b"x", 1)), ("chunks.n", b"x"), ("delete.a", b"")):
        assert rig.code(f"$OBJ.b.{subject}", body) in (11005, 11001)
    with pytest.raises(ApiError, match="bucket layout"):
        rig.delete("a cat")
    assert rig.stored() == ["$O.b.C.U", "$O.b.C.U", "$O.b.M.YSBjYXQ="]


def test_both_layouts_are_one_bucket() -> None:
    rig = Rig(*BOTH)
    rig.put("o", b"own", "n")
    real_object(rig, "o", "U", b"real")
    real_object(rig, "p", "V", b"x")
    assert rig.bucket.catalog.find("o").nonce == "U", "the newer one"
    assert names(rig) == ["o", "p"]
    rig.put("o", b"again", "n2", 9)
    assert rig.bucket.catalog.find("o").nonce == "n2"
    stone = json.loads(rig.store.queries.last_by_subject(b"$O.b.M.bw==").payload)  # type: ignore[union-attr]
    assert (stone["nuid"], stone["deleted"]) == ("U", True)
    assert sorted(rig.stored()) == ["$O.b.C.V", "$O.b.M.bw==", "$O.b.M.cA==", "chunks.n2", "info.o"]
    assert rig.delete("p") == {"success": True}
    assert rig.bucket.catalog.find("p").deleted
    assert rig.store.queries.last_by_subject(b"$O.b.M.cA==").headers == b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"  # type: ignore[union-attr]
    assert "$O.b.C.V" not in rig.stored()


def test_a_bucket_may_become_one_and_stop_being_one() -> None:
    rig = Rig("x")
    assert rig.bucket.layout is None
    rig.publish("$OBJ.b.info.o", meta("n", b"x", 1))
    rig.commit()
    assert rig.told() == []
    rig.configure("$OBJ.b.>")
    rig.bucket.configure(rig.machine.rules)
    rig.begin("n", b"x", 1)
    uploads = rig.bucket.uploads
    rig.configure("$OBJ.b.>", max_msgs=5)
    rig.bucket.configure(rig.machine.rules)
    assert rig.bucket.uploads is uploads, "other changes end no upload"
    rig.configure("x")
    rig.bucket.configure(rig.machine.rules)
    assert rig.bucket.uploads is None


def test_damage_is_no_absence(rig: Rig) -> None:
    rig.put("o", b"x", "n")

    def damaged(*_: object) -> Msg:
        raise DamagedError(1, 2)

    rig.store.queries.last_by_subject = damaged  # type: ignore[method-assign, assignment]
    assert rig.code("$OBJ.b.info.o", meta("m", b"x", 1)) == 10008
    assert rig.code("$OBJ.b.delete.o") == 10008
    assert len(rig.damage) == 2
