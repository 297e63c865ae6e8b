from __future__ import annotations

import pytest

from jetcluster.objects.host import ObjectLimits
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from tests.unit.objects.bench import Bench, digest, meta

DATA = b"abcdefghij"


def test_an_object_appears_whole_or_not_at_all(bench: Bench) -> None:
    assert bench.begin("n", DATA, 3, description="d", headers={"k": "v"}) == {"stream": "OBJ_b", "seq": 1}
    assert bench.chunk(b"abcd") == {"stream": "OBJ_b", "seq": 2}
    assert bench.chunk(b"efgh") == {"stream": "OBJ_b", "seq": 3}
    assert (bench.seen(), bench.stored()) == ([], ["upload.n", "chunks.n", "chunks.n"])
    bench.publish("$OBJ.b.chunks.n", b"ij")
    bench.time.advance(0)
    bench.commit(1)
    assert bench.told() == [], "the last chunk is stored, the object is not"
    assert len(bench.log) == 1
    bench.commit()
    (answer,) = bench.told()
    info = {
        "name": "o", "description": "d", "nonce": "n", "bucket": "b", "chunks": 3, "size": 10,
        "digest": digest(DATA), "deleted": False, "headers": {"k": "v"},
    }  # fmt: skip
    assert answer.pop("mtime").startswith("20")
    assert answer == {**info, "stream": "OBJ_b", "seq": 5}
    assert bench.seen() == [info]
    assert bench.stored() == ["chunks.n", "chunks.n", "chunks.n", "info.o"]
    assert bench.bucket.uploads is not None
    assert (bench.bucket.uploads.by_nonce, bench.bucket.uploads.finished) == ({}, 1)


def test_all_at_once_in_one_turn(bench: Bench) -> None:
    bench.publish("$OBJ.b.info.o", meta("n", DATA, 3), b"m")
    for part in (b"abcd", b"efgh", b"ij"):
        bench.publish("$OBJ.b.chunks.n", part)
    bench.commit()
    assert bench.told(b"m") == [{"stream": "OBJ_b", "seq": 1}]
    assert [answer.get("digest") for answer in bench.told()] == [None, None, digest(DATA)]


def test_without_replies_to_chunks_the_metadata_gets_the_second_answer(bench: Bench) -> None:
    bench.publish("$OBJ.b.info.o", meta("n", b"x", 1), b"m")
    bench.publish("$OBJ.b.chunks.n", b"x", b"")
    bench.commit()
    assert [answer.get("nonce") for answer in bench.told(b"m")] == [None, "n"]


def test_an_object_without_content(bench: Bench) -> None:
    bench.publish("$OBJ.b.info.o", meta("n", b"", 0), b"m")
    bench.commit()
    acked, done = bench.told(b"m")
    assert (acked, done["digest"], bench.stored()) == ({"stream": "OBJ_b", "seq": 1}, digest(b""), ["info.o"])


def test_a_newer_object_takes_the_place_of_the_older_one(bench: Bench) -> None:
    bench.put("o", DATA, "n1")
    bench.put("other", DATA, "n2")
    assert bench.put("o", b"new", "n3")["digest"] == digest(b"new")
    assert sorted(bench.stored()) == ["chunks.n2"] * 3 + ["chunks.n3", "info.o", "info.other"]


def test_two_uploads_of_one_name_end_at_once(bench: Bench) -> None:
    """Both propose to replace what they see; the second one's guard fails and it is worked out anew."""
    for nonce in ("n1", "n2"):
        bench.begin(nonce, b"x", 1)
    for nonce in ("n1", "n2"):
        bench.publish(f"$OBJ.b.chunks.{nonce}", b"x", nonce.encode())
    bench.commit()
    assert [bench.told(nonce)[0]["nonce"] for nonce in (b"n1", b"n2")] == ["n1", "n2"]
    assert bench.stored() == ["chunks.n2", "info.o"]
    assert [info["nonce"] for info in bench.seen()] == ["n1", "n2"]


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
    bench = Bench()
    bench.begin("n", DATA, chunks, **more)
    answers = [bench.chunk(part) for part in parts]
    assert answers[-1]["error"]["err_code"] == code
    assert all("seq" in answer and "error" not in answer for answer in answers[:-1])
    assert bench.stored() == [], "its messages are purged"
    assert bench.code("$OBJ.b.chunks.n", b"x") == 11008
    assert "error" not in bench.put("o", DATA, "n", digest=digest(DATA).replace("sha", "SHA")), (
        "the nonce is free again"
    )


def test_the_last_chunk_sent_twice_is_stored_once(bench: Bench) -> None:
    """The client's request timed out, and it cannot know how far its chunk came."""
    bench.begin("n", DATA, 2)
    bench.chunk(b"abcde")
    for reply in (b"r1", b"r2"):
        bench.publish("$OBJ.b.chunks.n", b"fghij", reply)
    bench.commit()
    assert [bench.told(reply)[0].get("nonce") for reply in (b"r1", b"r2")] == ["n", "n"]
    assert bench.chunk(b"fghij")["nonce"] == "n", "also when all is over"
    assert bench.code("$OBJ.b.chunks.n", b"other") == 11002
    assert bench.stored() == ["chunks.n", "chunks.n", "info.o"]


def test_more_chunks_than_announced_are_never_stored(bench: Bench) -> None:
    bench.begin("n", b"", 1)
    for reply in (b"r1", b"r2"):
        bench.publish("$OBJ.b.chunks.n", b"", reply)
    bench.commit()
    assert [bench.told(reply)[0].get("nonce") for reply in (b"r1", b"r2")] == ["n", "n"]
    assert bench.stored() == ["chunks.n", "info.o"]


def test_duplicates_are_not_counted() -> None:
    bench = Bench(duplicate_window=10**11)
    bench.begin("n", DATA, 2)
    first = bench.chunk(b"abcde", "n", "Nats-Msg-Id: 1")
    bench.publish("$OBJ.b.chunks.n", b"abcde", b"dup", ("Nats-Msg-Id: 1",))
    bench.publish("$OBJ.b.chunks.n", b"fghij", b"last", ("Nats-Msg-Id: 2",))
    bench.commit()
    assert bench.told(b"dup") == [{**first, "duplicate": True}]
    assert bench.told(b"last")[0]["digest"] == digest(DATA)


def test_chunks_sent_again_do_no_harm_wherever_the_upload_is() -> None:
    """Found by the model test: a client that lost its leader repeats all that was not answered."""
    bench = Bench(duplicate_window=10**12)
    ids = [(f"Nats-Msg-Id: {number}",) for number in range(3)]
    parts = [b"abcd", b"efgh", b"ij"]
    bench.begin("n", DATA, 3)
    for number in (0, 1):
        bench.publish("$OBJ.b.chunks.n", parts[number], b"", ids[number])
    bench.commit()
    bench.new_leader()
    bench.scan()
    assert bench.chunk(parts[0], "n", *ids[0]) == {"stream": "OBJ_b", "seq": 2, "duplicate": True}, (
        "4 bytes, 2 are left"
    )
    bench.publish("$OBJ.b.chunks.n", parts[2], b"", ids[2])
    bench.time.advance(0)
    bench.new_leader(1)  # it is complete, and its end not even proposed
    bench.publish("$OBJ.b.chunks.n", parts[1], b"again", ids[1])
    bench.publish("$OBJ.b.chunks.n", b"more", b"more")
    bench.publish("$OBJ.b.chunks.n", parts[2], b"last", ids[2])
    bench.scan()
    assert bench.told(b"again") == [{"stream": "OBJ_b", "seq": 3, "duplicate": True}]
    assert bench.told(b"more")[0]["error"]["err_code"] == 11003, "and what is complete does not suffer"
    assert bench.told(b"last")[0]["digest"] == digest(DATA)
    assert bench.chunk(parts[0], "n", *ids[0]) == {"stream": "OBJ_b", "seq": 2, "duplicate": True}


def test_a_chunk_that_the_stream_refuses_is_not_counted(bench: Bench) -> None:
    bench.begin("n", DATA, 2)
    assert bench.code("$OBJ.b.chunks.n", b"abcde", "Nats-Expected-Last-Sequence: 9") == 10071
    assert bench.code("$OBJ.b.chunks.n", b"abcde", "Nats-Batch-Id: x", "Nats-Batch-Sequence: 1") == 10174
    bench.chunk(b"abcde")
    assert bench.chunk(b"fghij")["digest"] == digest(DATA)


def test_metadata_sent_twice(bench: Bench) -> None:
    assert bench.begin("n", DATA, 2) == {"stream": "OBJ_b", "seq": 1}
    assert bench.begin("n", DATA, 2) == {"stream": "OBJ_b", "seq": 1, "duplicate": True}
    assert bench.code("$OBJ.b.info.o", meta("n", b"", 2)) == 11005
    assert bench.stored() == ["upload.n"]


def test_metadata_that_the_stream_refuses() -> None:
    bench = Bench(max_msgs=1, discard="new")
    bench.begin("n1", DATA, 2)
    bench.publish("$OBJ.b.info.o", meta("n2", DATA, 2), b"m")
    bench.publish("$OBJ.b.chunks.n2", b"x")
    bench.commit()
    assert bench.told(b"m")[0]["error"]["err_code"] == 10077
    assert bench.told()[0]["error"]["err_code"] == 11002
    assert bench.code("$OBJ.b.chunks.n2", b"x") == 11002
    assert list(bench.bucket.uploads.by_nonce) == ["n1"]  # type: ignore[union-attr]


def test_names_that_collide(bench: Bench) -> None:
    """ "Y2F0" is a name, and base64url of "cat"."""
    bench.put("Y2F0", b"x", "n1")
    assert bench.code("$OBJ.b.info.Y2F0", meta("n2", b"x", 1, "cat")) == 11005
    assert "error" not in bench.ask("$OBJ.b.info.cat", meta("n3", b"x", 1, "cat"))


def test_one_object_under_both_forms_of_its_subject(bench: Bench) -> None:
    bench.put("cat", b"x", "n1")
    bench.ask("$OBJ.b.info.Y2F0", meta("n2", b"y", 1, "cat"))
    assert bench.chunk(b"y", "n2")["nonce"] == "n2"
    assert bench.stored() == ["chunks.n2", "info.Y2F0"]


def test_a_new_leader_goes_on(bench: Bench) -> None:
    bench.begin("n", DATA, 3)
    bench.chunk(b"abcd")
    bench.publish("$OBJ.b.chunks.n", b"efgh")
    bench.time.advance(0)
    bench.new_leader()  # the second chunk is lost
    assert bench.chunk(b"efgh") == {"stream": "OBJ_b", "seq": 3}, "accepted while stored chunks are still read"
    bench.publish("$OBJ.b.chunks.n", b"ij")
    bench.commit()
    assert bench.told() == [], "but the last one waits"
    bench.scan()
    assert bench.told()[0]["digest"] == digest(DATA)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_new_leader_ends_what_is_complete(keep: int, bench: Bench) -> None:
    """The old one died when all chunks were stored; its REPLACE is lost, or committed by the next leader."""
    bench.publish("$OBJ.b.info.o", meta("n", DATA, 2), b"m")
    bench.commit()
    bench.chunk(b"abcde")
    bench.publish("$OBJ.b.chunks.n", b"fghij")
    bench.time.advance(0)
    bench.commit(1)
    bench.time.advance(0)
    assert len(bench.log) == 1
    bench.new_leader(keep)
    bench.scan()
    assert bench.stored() == ["chunks.n", "chunks.n", "info.o"]
    assert bench.chunk(b"fghij")["digest"] == digest(DATA), "the client asks again"
    assert [answer.get("digest") for answer in bench.told(b"m")] == [None] + [digest(DATA)] * (1 - keep)


def test_a_new_leader_finds_too_much(bench: Bench) -> None:
    """Bytes written to the stream past the service."""
    bench.begin("n", DATA, 2)
    for part in (b"abcde", b"fghij", b"k"):
        batch = Batch.encode([b"$OBJ.b.chunks.n"], [], [part])
        bench.machine.apply(bench.index + 1, 1, commands.encode_publish(1, batch))
        bench.index += 1
    bench.new_leader()
    bench.scan()
    assert bench.stored() == []


def test_chunks_that_come_past_the_service_never_get_into_an_object(bench: Bench) -> None:
    bench.begin("n", b"x", 1)
    bench.publish("$OBJ.b.chunks.n", b"x")
    bench.time.advance(0)
    batch = Batch.encode([b"$OBJ.b.chunks.n"], [], [b"y"])
    bench.log.append((bench.index + 1, commands.encode_publish(1, batch)))
    bench.index += 1
    bench.commit()
    assert bench.told()[0]["error"]["err_code"] == 11003
    assert bench.stored() == []


def test_chunks_that_were_evicted() -> None:
    bench = Bench(max_msgs=4)
    bench.begin("n", DATA, 2)
    bench.chunk(b"abcde")
    each = [bench.ask("$OBJ.b.misc", b"x") for _ in range(3)]
    assert each[-1]["seq"] == 5
    assert bench.code("$OBJ.b.chunks.n", b"fghij") == 11008, "its record was evicted"


def test_a_purge_ends_uploads(bench: Bench) -> None:
    bench.begin("n", DATA, 2)
    bench.index += 1
    bench.machine.apply(bench.index, 1, commands.encode_purge(1))
    assert bench.code("$OBJ.b.chunks.n", b"abcde") == 11008
    bench.tick()
    assert not bench.bucket.uploads.by_nonce  # type: ignore[union-attr]
    assert bench.stored() == []


def test_nothing_is_left_of_an_upload_that_ends_while_chunks_are_on_their_way(bench: Bench) -> None:
    bench.begin("n", DATA, 3)
    bench.publish("$OBJ.b.chunks.n", b"abcd")
    bench.index += 1
    bench.machine.apply(bench.index, 1, commands.encode_purge(1))
    bench.publish("$OBJ.b.chunks.n", b"efgh")
    bench.commit()
    assert [answer["error"]["err_code"] for answer in bench.told()] == [11008, 11008]
    assert bench.stored() == []


def test_uploads_that_nobody_goes_on_with_are_dropped(bench: Bench) -> None:
    bench.begin("n1", DATA, 2)
    bench.begin("n2", DATA, 2)
    bench.chunk(b"abcde", "n1")
    bench.time.advance(400)
    bench.chunk(b"abcde", "n2")
    bench.tick(201)
    assert bench.stored() == ["upload.n2", "chunks.n2"]
    assert bench.code("$OBJ.b.chunks.n1", b"fghij") == 11008
    bench.new_leader()
    bench.scan()
    bench.tick(390)
    assert bench.stored() == ["upload.n2", "chunks.n2"]
    bench.tick(20)
    assert bench.stored() == [], "a leader change does not lengthen the time"


def test_what_cannot_be_proposed_is_proposed_later(bench: Bench) -> None:
    bench.begin("n1", b"x", 1)
    bench.begin("n2", b"x", 1, "p", digest=digest(b"y"))
    bench.full = True
    bench.publish("$OBJ.b.chunks.n1", b"x", b"r1")
    bench.publish("$OBJ.b.chunks.n2", b"x", b"r2")
    bench.commit()
    assert bench.told(b"r1") == []
    assert bench.told(b"r2")[0]["error"]["err_code"] == 11004
    assert len(bench.bucket.uploads.by_nonce) == 2  # type: ignore[union-attr]
    bench.full = False
    bench.tick()
    assert bench.told(b"r1")[0]["nonce"] == "n1"
    assert bench.stored() == ["chunks.n1", "info.o"]


def test_limits() -> None:
    bench = Bench(limits=ObjectLimits(uploads=2, held_bytes=6))
    bench.begin("n1", DATA, 2)
    bench.begin("n2", DATA, 2, "p")
    assert bench.code("$OBJ.b.info.q", meta("n3", DATA, 2, "q")) == 10167
    bench.publish("$OBJ.b.chunks.n1", b"abcde")
    for reply in (b"r1", b"r2"):
        bench.publish("$OBJ.b.chunks.n1", b"fghijk", reply)  # may not be stored before the first one's fate is known
    assert bench.told(b"r2")[0]["error"]["err_code"] == 10167
    bench.commit()
    assert bench.told(b"r1")[0]["error"]["err_code"] == 11003
    bench.begin("n3", DATA, 2, "q")
    bench.publish("$OBJ.b.chunks.n3", b"abcdef", b"r3")
    bench.commit()
    assert "error" not in bench.told(b"r3")[0], "there is room for all of them again"
