"""Links whose upstream, answers or own stream fail (mirror/link.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.mirror.link import ROOM_SECONDS
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.stream.apply.sourced import Cursor
from jetcluster.stream.log import commands
from tests.unit.mirror.rig import MIRROR, SOURCE, Rig, begun
from tests.unit.stream.fake_store import block

# ---- what goes wrong


@pytest.mark.parametrize("number", [10059, 10039])  # nats-server's, and the specification's
def test_errors_are_logged_and_tried_again_ever_rarer(number: int, rig: Rig) -> None:
    rig.refuse("INFO", number)
    assert rig.link.info()["error"] == {"code": 404, "err_code": number, "description": "stream not found"}
    times = []
    for _ in range(8):
        before, start = rig.count("INFO"), rig.time.monotonic()
        while rig.count("INFO") == before:
            rig.run(0.05)
        times.append(rig.time.monotonic() - start)
        rig.refuse("INFO", number)
    assert times[0] < 1.0 < times[3]
    assert all(wait < 12.5 for wait in times)
    assert rig.lines.lines == [f"link failed stream not found ({number})"]
    rig.known.add("UP")
    before = rig.count("INFO")
    rig.links.tick()
    assert rig.count("INFO") == before + 1
    rig.live()
    assert "error" not in rig.link.info()


def test_nobody_there() -> None:
    rig = Rig(**MIRROR)
    rig.bus.deaf = True
    rig.links.begin()
    rig.run()
    assert "does not answer" in rig.error


def test_an_upstream_behind_a_link_is_found_soon_after_it_is_back() -> None:
    rig = Rig(mirror={"name": "UP", "external": {"api": "$JS.hub.API"}})
    rig.bus.deaf = True
    rig.links.begin()
    rig.run(120.0)
    assert "no answer" in rig.error
    rig.bus.deaf = False
    before = rig.count("STREAM.INFO")
    rig.run(1.3)
    assert rig.count("STREAM.INFO") > before
    rig.live()
    assert "error" not in rig.link.info()


def test_an_external_upstream_that_has_answered_before_gets_no_consumer_unasked() -> None:
    """It may be a work queue: a consumer without acks would take messages that this link never stores."""
    rig = Rig(mirror={"name": "UP", "external": {"api": "$JS.hub.API"}})
    rig.cursor = lambda key: Cursor(3, b"identity", 0)  # type: ignore[method-assign]
    rig.links.begin()
    rig.run(6.0)
    assert rig.count("CONSUMER.CREATE") == 0
    assert "does not answer" in rig.error


def test_no_answer_to_the_consumer(rig: Rig) -> None:
    rig.inform()
    rig.run(5.1)
    assert "no answer about a consumer" in rig.error


@pytest.mark.parametrize("answer", [{}, {"created": 1, "state": 3, "config": {}}, {"error": "x"}, [1]])
def test_nonsense(answer: Any, rig: Rig) -> None:
    rig.answer("INFO", answer)
    assert "10029" in rig.error and "not an answer" in rig.error


@pytest.mark.parametrize("config", [MIRROR, SOURCE])
def test_an_upstream_that_waits_for_acknowledgements_has_a_durable_consumer(config: dict[str, Any]) -> None:
    rig = begun(**config)
    rig.inform(config={"retention": "workqueue"})
    made = rig.accept()
    assert made["ack_policy"] == "flow_control" and made["max_ack_pending"] == 4096 and "direct" not in made
    assert made["durable_name"] == made["name"] and made["deliver_policy"] == "all"
    assert rig.asked("CREATE")[0].endswith(b"CONSUMER.CREATE.UP." + made["name"].encode())
    rig.commit()
    rig.send(1, 2, 5)
    rig.control(reply=b"$JS.FC.UP.C.x", text="FlowControl Request")
    rig.run()
    assert rig.count("$JS.FC") == 0, "nothing is acknowledged before it is committed here"
    rig.commit()
    assert rig.asked("$JS.FC")[0] == b"$JS.FC.UP.C.x"
    assert rig.bus.headers == block("Nats-Last-Consumer: 3", "Nats-Last-Stream: 5")
    rig.take(6)

    # The next attempt, here or on another node, finds the consumer: 6 was not acknowledged, and comes again.
    rig.begin_again()
    rig.inform(9)
    again = rig.accept(delivered=6, consumer_seq=4)
    assert again == {**made, "deliver_subject": again["deliver_subject"]} != made
    assert rig.bus.arrive(rig.deliver, b"up", b"$JS.ACK.UP.C.1.7.5.1.0", b"", b"7") == 0, "nobody listens yet"
    assert rig.asked("RESET")[0] == b"$JS.API.CONSUMER.RESET.UP." + made["name"].encode()
    rig.answer("RESET", {"name": made["name"], "delivered": {"consumer_seq": 0, "stream_seq": 5}, "num_pending": 4})
    rig.send(6, 7)
    rig.control(reply=b"$JS.FC.UP.C.y", text="FlowControl Request")
    rig.commit()
    assert rig.bus.headers == block("Nats-Last-Consumer: 2", "Nats-Last-Stream: 7")
    assert [payload for _, payload in rig.stored()] == [b"1", b"2", b"5", b"6", b"7"]
    assert rig.count("CONSUMER.DELETE") == 0

    rig.configure()
    rig.links.configure()
    assert rig.asked("CONSUMER.DELETE")[0].endswith(made["name"].encode()), "it would keep messages there for ever"


@pytest.mark.parametrize("config", [MIRROR, SOURCE])
def test_a_consumer_of_the_users_own_is_reset_and_listened_to(config: dict[str, Any]) -> None:
    given = {"name": "own", "deliver_subject": "deliver.here"}
    ((kind, link),) = config.items()
    config = {kind: {**link, "consumer": given}} if kind == "mirror" else {kind: [{**link[0], "consumer": given}]}
    rig = begun(**config)
    rig.inform()
    assert rig.asked("RESET")[0] == b"$JS.API.CONSUMER.RESET.UP.own" and rig.count("CREATE") == 0
    policy = {"config": {"ack_policy": "explicit"}}
    position = {"name": "own", "delivered": {"consumer_seq": 0, "stream_seq": 0}, "num_pending": 0}
    rig.answer("RESET", {**position, **policy})
    assert ("10214" if kind == "mirror" else "10217") in rig.error
    rig.run(1.0)
    rig.inform()
    rig.deliver, rig.dseq = b"deliver.here", 0
    rig.answer("RESET", {**position, "config": {"ack_policy": "flow_control"}})
    rig.commit()
    rig.send(1, 2)
    rig.control(reply=b"$JS.FC.UP.own.x", text="FlowControl Request")
    rig.commit()
    assert rig.bus.headers == block("Nats-Last-Consumer: 2", "Nats-Last-Stream: 2")
    assert [payload for _, payload in rig.stored()] == [b"1", b"2"]
    rig.configure()
    rig.links.configure()
    rig.links.end(deleted=True)
    assert rig.count("CONSUMER.DELETE") == 0, "it is the user's"


def test_a_queue_elsewhere_that_did_not_answer_at_once_gets_its_durable_consumer_later() -> None:
    """As after a start during which the leaf link is down: a plain consumer would leave in the queue what is copied."""
    rig = begun(mirror={"name": "UP", "external": {"api": "$JS.hub.API"}})
    rig.run(5.1)
    assert "durable_name" not in rig.accept()
    rig.commit()
    rig.take(1)
    asked = rig.count("STREAM.INFO")
    rig.links.tick()
    rig.links.tick()
    assert rig.count("STREAM.INFO") == asked + 1
    rig.inform(1, config={"retention": "workqueue"})
    rig.links.tick()
    rig.run(1.0)
    assert rig.count("CONSUMER.DELETE") == 1, "the plain one"
    rig.inform(1)
    assert rig.accept(consumer_seq=1)["durable_name"]


def test_an_upstream_that_permits_few_unacknowledged_messages_chooses_how_many() -> None:
    """By the `consumer_limits` of a work queue, or its account's: else its mirror would get nothing, ever."""
    rig = begun(**MIRROR)
    rig.inform(config={"retention": "workqueue"})
    first = json.loads(rig.asked("CREATE")[1])["config"]
    rig.refuse("CREATE", 10121)
    made = rig.accept()
    assert first["max_ack_pending"] == 4096 and made["max_ack_pending"] == 0 and made["name"] == first["name"]
    rig.commit()
    rig.take(1)
    assert [payload for _, payload in rig.stored()] == [b"1"] and not rig.error

    rig.begin_again()
    rig.inform(1)
    rig.refuse("CREATE", 10121)
    rig.refuse("CREATE", 10121)
    assert "10121" in rig.error, "of an upstream that refuses its own default"


def test_an_upstream_that_never_answers_is_asked_ever_more_rarely() -> None:
    rig = begun(mirror={"name": "UP", "external": {"api": "$JS.hub.API"}})
    rig.run(5.1)
    rig.accept()
    rig.commit()
    asked = rig.count("STREAM.INFO")
    for _ in range(600):
        rig.control("Nats-Last-Consumer: 0")
        rig.links.tick()
        rig.run(1.0)
    assert asked + 4 <= rig.count("STREAM.INFO") <= asked + 8


def test_a_durable_consumer_goes_with_the_stream() -> None:
    rig = begun(**SOURCE)
    rig.inform(config={"retention": "interest"})
    rig.accept()
    rig.links.end(deleted=True)
    assert rig.count("CONSUMER.DELETE.UP.JS_SRC_") == 1


def test_an_answer_of_an_earlier_attempt_changes_nothing(rig: Rig) -> None:
    reply = rig.asked("INFO")[2]
    rig.run(5.1)
    rig.run(5.0)
    rig.bus.arrive(reply, reply, b"", b"", json.dumps(rig.upstream).encode())
    assert rig.count("CREATE") == 0


def test_a_full_stream_is_reported_until_it_takes_something() -> None:
    rig = begun(**MIRROR, max_msgs=1, discard="new")
    rig.live()
    rig.take(1, 2)
    assert "10077" in rig.error
    rig.run(1.0)
    rig.live(last_seq=2)
    assert "10077" in rig.error  # that a consumer can be had does not make room
    rig.configure(**MIRROR)
    rig.take(2)
    assert (rig.error, len(rig.stored())) == ("", 2)


def delete(rig: Rig, seq: int) -> None:
    rig.index += 1
    result = rig.machine.apply(rig.index, 1, commands.encode_delete_msg(0, seq, erase=False))
    rig.links.applied(rig.index, result)


def fill(rig: Rig, *seqs: int) -> None:
    """An attempt in which the stream takes what it has room for."""
    rig.live(last_seq=100)
    rig.take(*seqs)
    assert "10077" in rig.error and not rig.link.live


def test_a_full_stream_is_tried_again_at_short_intervals_and_at_once_when_there_is_room() -> None:
    rig = begun(**SOURCE, max_msgs=2, discard="new")
    fill(rig, 1, 2, 3)
    for _ in range(8):
        asked = rig.count("STREAM.INFO")
        rig.run(1.25)
        assert rig.count("STREAM.INFO") == asked + 1, "no more rarely the longer it lasts"
        fill(rig, 3)
    rig.run(ROOM_SECONDS)
    asked = rig.count("STREAM.INFO")
    delete(rig, 1)
    rig.run()
    assert rig.count("STREAM.INFO") == asked + 1, "at once"
    fill(rig, 3, 4)
    delete(rig, 2)
    rig.run()
    assert rig.count("STREAM.INFO") == asked + 1, "what goes one by one is no reason to ask without a pause"
    rig.run(ROOM_SECONDS)
    rig.links.tick()
    assert rig.count("STREAM.INFO") == asked + 2
    rig.live(last_seq=100)
    rig.take(4)
    assert [payload for _, payload in rig.stored()] == [b"3", b"4"]


def test_a_stream_that_may_hold_more_takes_it_soon() -> None:
    rig = begun(**SOURCE, max_msgs=1, discard="new")
    fill(rig, 1, 2)
    asked = rig.count("STREAM.INFO")
    rig.configure(**SOURCE, max_msgs=5, discard="new")
    rig.run(ROOM_SECONDS)
    rig.links.tick()
    rig.run()
    assert rig.count("STREAM.INFO") == asked + 1


def test_what_no_room_helps_is_tried_ever_more_rarely() -> None:
    rig = begun(**SOURCE, max_msg_size=1)
    attempts = 0
    for _ in range(60):
        before = rig.count("STREAM.INFO")
        rig.run(1.0)
        if rig.count("STREAM.INFO") > before or not attempts:
            attempts += 1
            rig.live(last_seq=100)
            rig.take(10)
    assert attempts < 15


def test_own_messages_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    rig.live()
    rig.take(1)
    rig.begin_again()

    def read(seqs: Any) -> Any:
        raise DamagedError(1, 1)

    monkeypatch.setattr(rig.store.reader, "read", read)
    rig.inform(5, created="2027-01-01T00:00:00Z")
    assert len(rig.damage) == 1
    assert "cannot be read" in rig.error


def test_own_messages_that_cannot_be_read_while_nobody_answers_for_the_upstream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(sources=[{"name": "UP", "external": {"api": "$JS.hub.API"}}])
    rig.store.append(Batch.of([b"s"], [], [b"restored from an archive"]), 1, 1)

    def read(seqs: Any) -> Any:
        raise DamagedError(1, 1)

    monkeypatch.setattr(rig.store.reader, "read", read)
    rig.links.begin()
    _, _, reply = rig.asked("STREAM.INFO")
    rig.bus.arrive(reply, reply, b"", b"NATS/1.0 503\r\n\r\n", b"")
    assert len(rig.damage) == 1
    assert "cannot be read" in rig.error
    rig.run(1.0)
    assert rig.count("STREAM.INFO") == 2, "it tries again, as the damage may be repaired"
