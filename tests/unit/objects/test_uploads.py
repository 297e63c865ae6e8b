from __future__ import annotations

import pytest

from jetcluster.objects.host import ObjectLimits
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from tests.unit.objects.rig import Rig, digest, meta

DATA = b"abcdefghij"


def test_an_object_appears_whole_or_not_at_all(rig: Rig) -> None:
    assert rig.begin("n", DATA, 3, description="d", headers={"k": "v"}) == {"stream": "OBJ_b", "seq": 1}
    assert rig.chunk(b"abcd") == {"stream": "OBJ_b", "seq": 2}
    assert rig.chunk(b"efgh") == {"stream": "OBJ_b", "seq": 3}
    assert (rig.seen(), rig.stored()) == ([], ["upload.n", "chunks.n", "chunks.n"])
    rig.publish("$OBJ.b.chunks.n", b"ij")
    rig.time.advance(0)
    rig.commit(1)
    assert rig.told() == [], "the last chunk is stored, the object is not"
    assert len(rig.log) == 1
    rig.commit()
    (answer,) = rig.told()
    info = {
        "name": "o", "description": "d", "nonce": "n", "bucket": "b", "chunks": 3, "size": 10,
        "digest": digest(DATA), "deleted": False, "headers": {"k": "v"},
    }  # fmt: skip
    assert answer.pop("mtime").startswith("20")
    assert answer == {**info, "stream": "OBJ_b", "seq": 5}
    assert rig.seen() == [info]
    assert rig.stored() == ["chunks.n", "chunks.n", "chunks.n", "info.o"]
    assert rig.bucket.uploads is not None
    assert (rig.bucket.uploads.by_nonce, rig.bucket.uploads.finished) == ({}, 1)


def test_all_at_once_in_one_turn(rig: Rig) -> None:
    rig.publish("$OBJ.b.info.o", meta("n", DATA, 3), b"m")
    for part in (b"abcd", b"efgh", b"ij"):
        rig.publish("$OBJ.b.chunks.n", part)
    rig.commit()
    assert rig.told(b"m") == [{"stream": "OBJ_b", "seq": 1}]
    assert [answer.get("digest") for answer in rig.told()] == [None, None, digest(DATA)]


def test_without_replies_to_chunks_the_metadata_gets_the_second_answer(rig: Rig) -> None:
    rig.publish("$OBJ.b.info.o", meta("n", b"x", 1), b"m")
    rig.publish("$OBJ.b.chunks.n", b"x", b"")
    rig.commit()
    assert [answer.get("nonce") for answer in rig.told(b"m")] == [None, "n"]


def test_an_object_without_content(rig: Rig) -> None:
    rig.publish("$OBJ.b.info.o", meta("n", b"", 0), b"m")
    rig.commit()
    acked, done = rig.told(b"m")
    assert (acked, done["digest"], rig.stored()) == ({"stream": "OBJ_b", "seq": 1}, digest(b""), ["info.o"])


def test_a_newer_object_takes_the_place_of_the_older_one(rig: Rig) -> None:
    rig.put("o", DATA, "n1")
    rig.put("other", DATA, "n2")
    assert rig.put("o", b"new", "n3")["digest"] == digest(b"new")
    assert sorted(rig.stored()) == ["chunks.n2"] * 3 + ["chunks.n3", "info.o", "info.other"]


def test_two_uploads_of_one_name_end_at_once(rig: Rig) -> None:
    """Both propose to replace what they see; the second one's guard fails and it is worked out anew."""
    for nonce in ("n1", "n2"):
        rig.begin(nonce, b"x", 1)
    for nonce in ("n1", "n2"):
        rig.publish(f"$OBJ.b.chunks.{nonce}", b"x", nonce.encode())
    rig.commit()
    assert [rig.told(nonce)[0]["nonce"] for nonce in (b"n1", b"n2")] == ["n1", "n2"]
    assert rig.stored() == ["chunks.n2", "info.o"]
    assert [info["nonce"] for info in rig.seen()] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("chunks", "parts", "more", "code"),
    [
        (2, [b"abcd", b"efghi"], {}, 11003),
        (2, [b"abcd", b"efghijk"], {}, 11003),
        (3, [b"abcdefghij", b"k"], {}, 11003),
        (1, [DATA], {"digest": digest(b"other")}, 11004),
    ],
)
def test_content_that_is_not_what_was_announced(chunks: int, parts: list[bytes], more: dict, code: int) -> None:  # type: ignore[type-arg]
    rig = Rig()
    rig.begin("n", DATA, chunks, **more)
    answers = [rig.chunk(part) for part in parts]
    assert answers[-1]["error"]["err_code"] == code
    assert all("seq" in answer and "error" not in answer for answer in answers[:-1])
    assert rig.stored() == [], "its messages are purged"
    assert rig.code("$OBJ.b.chunks.n", b"x") == 11008
    assert "error" not in rig.put("o", DATA, "n", digest=digest(DATA).replace("sha", "SHA")), "the nonce is free again"


def test_the_last_chunk_sent_twice_is_stored_once(rig: Rig) -> None:
    """The client's request timed out, and it cannot know how far its chunk came."""
    rig.begin("n", DATA, 2)
    rig.chunk(b"abcde")
    for reply in (b"r1", b"r2"):
        rig.publish("$OBJ.b.chunks.n", b"fghij", reply)
    rig.commit()
    assert [rig.told(reply)[0].get("nonce") for reply in (b"r1", b"r2")] == ["n", "n"]
    assert rig.chunk(b"fghij")["nonce"] == "n", "also when all is over"
    assert rig.code("$OBJ.b.chunks.n", b"other") == 11002
    assert rig.stored() == ["chunks.n", "chunks.n", "info.o"]


def test_more_chunks_than_announced_are_never_stored(rig: Rig) -> None:
    rig.begin("n", b"", 1)
    for reply in (b"r1", b"r2"):
        rig.publish("$OBJ.b.chunks.n", b"", reply)
    rig.commit()
    assert [rig.told(reply)[0].get("nonce") for reply in (b"r1", b"r2")] == ["n", "n"]
    assert rig.stored() == ["chunks.n", "info.o"]


def test_duplicates_are_not_counted() -> None:
    rig = Rig(duplicate_window=10**11)
    rig.begin("n", DATA, 2)
    first = rig.chunk(b"abcde", "n", "Nats-Msg-Id: 1")
    rig.publish("$OBJ.b.chunks.n", b"abcde", b"dup", ("Nats-Msg-Id: 1",))
    rig.publish("$OBJ.b.chunks.n", b"fghij", b"last", ("Nats-Msg-Id: 2",))
    rig.commit()
    assert rig.told(b"dup") == [{**first, "duplicate": True}]
    assert rig.told(b"last")[0]["digest"] == digest(DATA)


def test_chunks_sent_again_do_no_harm_wherever_the_upload_is() -> None:
    """Found by the model test: a client that lost its leader repeats all that was not answered."""
    rig = Rig(duplicate_window=10**12)
    ids = [(f"Nats-Msg-Id: {number}",) for number in range(3)]
    parts = [b"abcd", b"efgh", b"ij"]
    rig.begin("n", DATA, 3)
    for number in (0, 1):
        rig.publish("$OBJ.b.chunks.n", parts[number], b"", ids[number])
    rig.commit()
    rig.new_leader()
    rig.scan()
    assert rig.chunk(parts[0], "n", *ids[0]) == {"stream": "OBJ_b", "seq": 2, "duplicate": True}, "4 bytes, 2 are left"
    rig.publish("$OBJ.b.chunks.n", parts[2], b"", ids[2])
    rig.time.advance(0)
    rig.new_leader(1)  # it is complete, and its end not even proposed
    rig.publish("$OBJ.b.chunks.n", parts[1], b"again", ids[1])
    rig.publish("$OBJ.b.chunks.n", b"more", b"more")
    rig.publish("$OBJ.b.chunks.n", parts[2], b"last", ids[2])
    rig.scan()
    assert rig.told(b"again") == [{"stream": "OBJ_b", "seq": 3, "duplicate": True}]
    assert rig.told(b"more")[0]["error"]["err_code"] == 11003, "and what is complete does not suffer"
    assert rig.told(b"last")[0]["digest"] == digest(DATA)
    assert rig.chunk(parts[0], "n", *ids[0]) == {"stream": "OBJ_b", "seq": 2, "duplicate": True}


def test_a_chunk_that_the_stream_refuses_is_not_counted(rig: Rig) -> None:
    rig.begin("n", DATA, 2)
    assert rig.code("$OBJ.b.chunks.n", b"abcde", "Nats-Expected-Last-Sequence: 9") == 10071
    assert rig.code("$OBJ.b.chunks.n", b"abcde", "Nats-Batch-Id: x", "Nats-Batch-Sequence: 1") == 10174
    rig.chunk(b"abcde")
    assert rig.chunk(b"fghij")["digest"] == digest(DATA)


def test_metadata_sent_twice(rig: Rig) -> None:
    assert rig.begin("n", DATA, 2) == {"stream": "OBJ_b", "seq": 1}
    assert rig.begin("n", DATA, 2) == {"stream": "OBJ_b", "seq": 1, "duplicate": True}
    assert rig.code("$OBJ.b.info.o", meta("n", b"", 2)) == 11005
    assert rig.stored() == ["upload.n"]


def test_metadata_that_the_stream_refuses() -> None:
    rig = Rig(max_msgs=1, discard="new")
    rig.begin("n1", DATA, 2)
    rig.publish("$OBJ.b.info.o", meta("n2", DATA, 2), b"m")
    rig.publish("$OBJ.b.chunks.n2", b"x")
    rig.commit()
    assert rig.told(b"m")[0]["error"]["err_code"] == 10077
    assert rig.told()[0]["error"]["err_code"] == 11002
    assert rig.code("$OBJ.b.chunks.n2", b"x") == 11002
    assert list(rig.bucket.uploads.by_nonce) == ["n1"]  # type: ignore[union-attr]


def test_names_that_collide(rig: Rig) -> None:
    """ "Y2F0" is a name, and base64url of "cat"."""
    rig.put("Y2F0", b"x", "n1")
    assert rig.code("$OBJ.b.info.Y2F0", meta("n2", b"x", 1, "cat")) == 11005
    assert "error" not in rig.ask("$OBJ.b.info.cat", meta("n3", b"x", 1, "cat"))


def test_one_object_under_both_forms_of_its_subject(rig: Rig) -> None:
    rig.put("cat", b"x", "n1")
    rig.ask("$OBJ.b.info.Y2F0", meta("n2", b"y", 1, "cat"))
    assert rig.chunk(b"y", "n2")["nonce"] == "n2"
    assert rig.stored() == ["chunks.n2", "info.Y2F0"]


def test_a_new_leader_goes_on(rig: Rig) -> None:
    rig.begin("n", DATA, 3)
    rig.chunk(b"abcd")
    rig.publish("$OBJ.b.chunks.n", b"efgh")
    rig.time.advance(0)
    rig.new_leader()  # the second chunk is lost
    assert rig.chunk(b"efgh") == {"stream": "OBJ_b", "seq": 3}, "accepted while stored chunks are still read"
    rig.publish("$OBJ.b.chunks.n", b"ij")
    rig.commit()
    assert rig.told() == [], "but the last one waits"
    rig.scan()
    assert rig.told()[0]["digest"] == digest(DATA)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_new_leader_ends_what_is_complete(keep: int, rig: Rig) -> None:
    """The old one died when all chunks were stored; its REPLACE is lost, or committed by the next leader."""
    rig.publish("$OBJ.b.info.o", meta("n", DATA, 2), b"m")
    rig.commit()
    rig.chunk(b"abcde")
    rig.publish("$OBJ.b.chunks.n", b"fghij")
    rig.time.advance(0)
    rig.commit(1)
    rig.time.advance(0)
    assert len(rig.log) == 1
    rig.new_leader(keep)
    rig.scan()
    assert rig.stored() == ["chunks.n", "chunks.n", "info.o"]
    assert rig.chunk(b"fghij")["digest"] == digest(DATA), "the client asks again"
    assert [answer.get("digest") for answer in rig.told(b"m")] == [None] + [digest(DATA)] * (1 - keep)


def test_a_new_leader_finds_too_much(rig: Rig) -> None:
    """Bytes written to the stream past the service."""
    rig.begin("n", DATA, 2)
    for part in (b"abcde", b"fghij", b"k"):
        batch = Batch.encode([b"$OBJ.b.chunks.n"], [], [part])
        rig.machine.apply(rig.index + 1, 1, commands.encode_publish(1, batch))
        rig.index += 1
    rig.new_leader()
    rig.scan()
    assert rig.stored() == []


def test_chunks_that_come_past_the_service_never_get_into_an_object(rig: Rig) -> None:
    rig.begin("n", b"x", 1)
    rig.publish("$OBJ.b.chunks.n", b"x")
    rig.time.advance(0)
    batch = Batch.encode([b"$OBJ.b.chunks.n"], [], [b"y"])
    rig.log.append((rig.index + 1, commands.encode_publish(1, batch)))
    rig.index += 1
    rig.commit()
    assert rig.told()[0]["error"]["err_code"] == 11003
    assert rig.stored() == []


def test_chunks_that_were_evicted() -> None:
    rig = Rig(max_msgs=4)
    rig.begin("n", DATA, 2)
    rig.chunk(b"abcde")
    each = [rig.ask("$OBJ.b.misc", b"x") for _ in range(3)]
    assert each[-1]["seq"] == 5
    assert rig.code("$OBJ.b.chunks.n", b"fghij") == 11008, "its record was evicted"


def test_a_purge_ends_uploads(rig: Rig) -> None:
    rig.begin("n", DATA, 2)
    rig.index += 1
    rig.machine.apply(rig.index, 1, commands.encode_purge(1))
    assert rig.code("$OBJ.b.chunks.n", b"abcde") == 11008
    rig.tick()
    assert not rig.bucket.uploads.by_nonce  # type: ignore[union-attr]
    assert rig.stored() == []


def test_nothing_is_left_of_an_upload_that_ends_while_chunks_are_on_their_way(rig: Rig) -> None:
    rig.begin("n", DATA, 3)
    rig.publish("$OBJ.b.chunks.n", b"abcd")
    rig.index += 1
    rig.machine.apply(rig.index, 1, commands.encode_purge(1))
    rig.publish("$OBJ.b.chunks.n", b"efgh")
    rig.commit()
    assert [answer["error"]["err_code"] for answer in rig.told()] == [11008, 11008]
    assert rig.stored() == []


def test_uploads_that_nobody_goes_on_with_are_dropped(rig: Rig) -> None:
    rig.begin("n1", DATA, 2)
    rig.begin("n2", DATA, 2)
    rig.chunk(b"abcde", "n1")
    rig.time.advance(400)
    rig.chunk(b"abcde", "n2")
    rig.tick(201)
    assert rig.stored() == ["upload.n2", "chunks.n2"]
    assert rig.code("$OBJ.b.chunks.n1", b"fghij") == 11008
    rig.new_leader()
    rig.scan()
    rig.tick(390)
    assert rig.stored() == ["upload.n2", "chunks.n2"]
    rig.tick(20)
    assert rig.stored() == [], "a leader change does not lengthen the time"


def test_what_cannot_be_proposed_is_proposed_later(rig: Rig) -> None:
    rig.begin("n1", b"x", 1)
    rig.begin("n2", b"x", 1, "p", digest=digest(b"y"))
    rig.full = True
    rig.publish("$OBJ.b.chunks.n1", b"x", b"r1")
    rig.publish("$OBJ.b.chunks.n2", b"x", b"r2")
    rig.commit()
    assert rig.told(b"r1") == []
    assert rig.told(b"r2")[0]["error"]["err_code"] == 11004
    assert len(rig.bucket.uploads.by_nonce) == 2  # type: ignore[union-attr]
    rig.full = False
    rig.tick()
    assert rig.told(b"r1")[0]["nonce"] == "n1"
    assert rig.stored() == ["chunks.n1", "info.o"]


def test_changed_limits_count_at_once() -> None:
    rig = Rig(limits=ObjectLimits(uploads=1))
    rig.begin("n1", DATA, 2)
    assert rig.code("$OBJ.b.info.q", meta("n2", DATA, 2, "q")) == 10167
    rig.limits = ObjectLimits(uploads=2)
    rig.begin("n2", DATA, 2, "q")
    assert len(rig.bucket.uploads.by_nonce) == 2  # type: ignore[union-attr]


def test_limits() -> None:
    rig = Rig(limits=ObjectLimits(uploads=2, held_bytes=6))
    rig.begin("n1", DATA, 2)
    rig.begin("n2", DATA, 2, "p")
    assert rig.code("$OBJ.b.info.q", meta("n3", DATA, 2, "q")) == 10167
    rig.publish("$OBJ.b.chunks.n1", b"abcde")
    for reply in (b"r1", b"r2"):
        rig.publish("$OBJ.b.chunks.n1", b"fghijk", reply)  # may not be stored before the first one's fate is known
    assert rig.told(b"r2")[0]["error"]["err_code"] == 10167
    rig.commit()
    assert rig.told(b"r1")[0]["error"]["err_code"] == 11003
    rig.begin("n3", DATA, 2, "q")
    rig.publish("$OBJ.b.chunks.n3", b"abcdef", b"r3")
    rig.commit()
    assert "error" not in rig.told(b"r3")[0], "there is room for all of them again"
