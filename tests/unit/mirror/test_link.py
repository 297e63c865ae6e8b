from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from jetcluster.mirror import inflow
from jetcluster.mirror.link import SILENCE_SECONDS
from jetcluster.model.times import rfc3339
from jetcluster.protocol.subjects import is_valid_literal
from jetcluster.stream.log import commands
from jetcluster.stream.rules import link_key
from tests.unit.mirror.rig import CREATED, MIRROR, SOURCE, Rig, begun
from tests.unit.stream.fake_store import block


def test_a_mirror_from_the_beginning(rig: Rig) -> None:
    assert rig.asked("INFO")[0] == b"$JS.API.STREAM.INFO.UP"
    assert rig.link.info() == {"name": "UP", "lag": 0, "active": -1}
    config = rig.live(last_seq=3, pending=3)
    assert rig.asked("CREATE")[0] == b"$JS.API.CONSUMER.CREATE.UP"
    assert config["deliver_policy"] == "all" and config["ack_policy"] == "none"
    assert config["flow_control"] and config["direct"] and config["idle_heartbeat"] == 10**9
    assert config["name"].startswith("JS_MIRROR_") and rig.deliver.startswith(b"$JS.M.")
    rig.take(1, 2, 5)
    assert rig.stored() == [(1, b"1"), (2, b"2"), (5, b"5")]
    rig.run(2.0)
    assert rig.link.info() == {"name": "UP", "lag": 0, "active": 2 * 10**9}


def test_it_goes_on_behind_what_is_stored(rig: Rig) -> None:
    rig.live()
    rig.take(1, 2)
    rig.links.end()
    assert rig.count("CONSUMER.DELETE.UP.JS_MIRROR") == 1
    assert rig.send(3) == 0
    rig.links.begin()
    config = rig.live(last_seq=9, delivered=2)
    assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 3)
    rig.take(3)
    assert [seq for seq, _ in rig.stored()] == [1, 2, 3]


def test_gaps_at_the_beginning_and_none_without_proof(rig: Rig) -> None:
    rig.live(last_seq=10, delivered=7)
    assert rig.store.last_seq == 7
    other = begun()
    other.inform(10)
    other.accept(delivered=7, consumer_seq=7)  # those are on their way
    other.commit()
    assert other.store.last_seq == 0


def test_messages_that_overtake_the_answer(rig: Rig) -> None:
    rig.inform(2)
    rig.deliver = json.loads(rig.asked("CREATE")[1])["config"]["deliver_subject"].encode()
    rig.send(1, 2)
    before = rig.dseq
    rig.accept()
    rig.dseq = before
    rig.take(3)
    assert [seq for seq, _ in rig.stored()] == [1, 2, 3]


def test_a_missing_delivery_begins_again(rig: Rig) -> None:
    rig.live()
    rig.take(1, 2)
    rig.send(9, skip=1)
    assert not rig.link.live
    rig.run(1.0)
    assert rig.count("STREAM.INFO") == 2
    config = rig.live(last_seq=9)
    assert config["opt_start_seq"] == 3
    assert rig.stored() == [(1, b"1"), (2, b"2")]


def test_a_delivery_number_that_comes_again_begins_again(rig: Rig) -> None:
    """Another owner went on from what was replicated: with what was deleted since, its numbers mean other messages."""
    rig.live()
    rig.send(1, 2, 3)
    rig.dseq = 1
    rig.send(3)
    assert not rig.link.live


def test_a_redelivery_is_ignored(rig: Rig) -> None:
    rig.live()
    rig.send(1)
    rig.send(1, tries=2)
    rig.dseq = 1
    rig.take(2)
    assert rig.stored() == [(1, b"1"), (2, b"2")]


def test_a_heartbeat_that_counts_more_begins_again(rig: Rig) -> None:
    rig.live()
    rig.send(1)
    rig.control("Nats-Last-Consumer: 1", "Nats-Last-Stream: 1")
    assert rig.link.live
    rig.control("Nats-Last-Consumer: 2", "Nats-Last-Stream: 2")
    assert not rig.link.live


def test_silence_begins_again_without_an_error(rig: Rig) -> None:
    rig.live()
    rig.run(SILENCE_SECONDS - 0.1)
    rig.control("Nats-Last-Consumer: 0")
    rig.run(SILENCE_SECONDS - 0.1)
    rig.links.tick()
    assert rig.link.live
    rig.run(0.2)
    rig.links.tick()
    rig.run()
    assert rig.count("STREAM.INFO") == 2
    assert rig.error == ""
    rig.run(5.1)
    assert "10029" in rig.error and "does not answer" in rig.error


@pytest.mark.parametrize("subject", ["orders.paid", "$JS.API.STREAM.PURGE.S", "$KV.b.k", "$JS.FCX.y"])
@pytest.mark.parametrize("stalled", [False, True])
def test_an_upstream_has_nothing_published_where_it_likes(subject: str, stalled: bool, rig: Rig) -> None:
    rig.live()
    before = rig.count(subject)
    if stalled:
        rig.control("Nats-Last-Consumer: 0", f"Nats-Consumer-Stalled: {subject}")
    else:
        rig.control(reply=subject.encode(), text="FlowControl Request")
    rig.run()
    rig.commit()
    assert rig.count(subject) == before == 0
    assert "flow control" in rig.error


def test_flow_control_is_answered_after_the_log(rig: Rig) -> None:
    rig.live()
    rig.send(1, 2)
    rig.control(reply=b"$JS.FC.UP.C.x", text="FlowControl Request")
    rig.run()
    assert rig.count("$JS.FC") == 0
    rig.commit()
    assert rig.asked("$JS.FC")[0] == b"$JS.FC.UP.C.x"
    rig.control("Nats-Last-Consumer: 2", "Nats-Consumer-Stalled: $JS.FC.UP.C.y")
    assert rig.asked("$JS.FC")[0] == b"$JS.FC.UP.C.y"


def test_a_consumer_that_waits_at_one_question_for_ever_is_an_error(rig: Rig) -> None:
    rig.live()
    rig.send(1)

    def stalled_at(letter: str) -> None:
        rig.control("Nats-Last-Consumer: 1", f"Nats-Consumer-Stalled: $JS.FC.UP.C.{letter}")

    for letter in "xxyyxx":
        stalled_at(letter)
    assert rig.error == "", "each question is another one"
    for _ in range(4):
        stalled_at("x")
        assert rig.error == "stream source consumer stalled on flow control (10228)"
    assert len([line for line in rig.lines.lines if "stalled" in line]) == 1
    rig.run()
    rig.commit()
    assert rig.count("$JS.FC") == 10, "each is answered"
    rig.control("Nats-Last-Consumer: 1")
    assert rig.error == ""


@pytest.mark.parametrize(("counter", "counts"), [(True, [64, 64, 22]), (False, [150])])
def test_commands_for_counters_are_short(counter: bool, counts: list[int]) -> None:
    """Each of their messages may become a long one."""
    rig = begun(**SOURCE, allow_msg_counter=counter)
    rig.live()
    rig.commit()
    rig.send(*range(1, 151))
    rig.run()
    assert [len(getattr(commands.decode(command), "seqs", ())) for _, command in rig.log] == counts


def test_the_log_takes_nothing_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflow, "COMMAND_MESSAGES", 2)
    rig = begun()
    rig.live()
    rig.closed = True
    rig.send(1, 2, 3, 4, 5)
    rig.run(0.5)
    assert not rig.log
    rig.closed = False
    rig.run(0.2)
    assert len(rig.log) == 3
    rig.commit()
    assert [seq for seq, _ in rig.stored()] == [1, 2, 3, 4, 5]


def test_where_in_the_log_all_is_that_came(rig: Rig) -> None:
    assert rig.links.newest() == 0
    rig.live()
    assert rig.links.newest() == 0
    rig.send(1, 2)
    assert not rig.log  # that is for the end of the turn, unless somebody asks
    assert rig.links.newest() == rig.links.newest() == rig.log[-1][0]
    rig.send(3)
    assert rig.links.newest() == rig.log[-1][0] and len(rig.log) == 2
    rig.commit()
    assert rig.links.newest() == 0
    assert [seq for seq, _ in rig.stored()] == [1, 2, 3]
    rig.send(4, pending=11)
    assert rig.links.newest() == 0 and not rig.log  # far behind: nobody waits for that
    rig.send(5, pending=10)
    assert rig.links.newest() == rig.log[-1][0]
    rig.links.end()
    assert rig.links.newest() == 0


def test_whether_an_upstream_here_has_what_has_not_come(rig: Rig) -> None:
    assert not rig.links.behind(lambda name: 3), "not live"
    rig.live()
    assert rig.links.behind(lambda name: 3) and not rig.links.behind(lambda name: 0)
    rig.send(1, 2)
    assert rig.links.behind(lambda name: 3) and not rig.links.behind(lambda name: 2)
    assert not rig.links.behind(lambda name: 12), "far behind: nobody waits for that"
    rig.links.end()
    assert not rig.links.behind(lambda name: 3)


def test_a_log_that_takes_nothing_is_asked_by_the_timer_only(rig: Rig) -> None:
    rig.live()
    rig.closed = True
    rig.send(1)
    asked: list[bytes] = []
    propose = rig.propose
    rig.propose = lambda command: (asked.append(command), propose(command))[1]  # type: ignore[method-assign, func-returns-value]
    for _ in range(5):
        assert rig.links.newest() == 0
    assert len(asked) == 1
    rig.closed = False
    rig.run(0.2)
    assert len(asked) == 2 and rig.links.newest() == rig.log[-1][0]


def test_bytes_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflow, "COMMAND_MESSAGES", 1)
    monkeypatch.setattr(inflow, "FLIGHT_BYTES", 150)
    rig = begun()
    rig.live()
    rig.send(1, 2, 3, 4, 5)
    rig.run()
    assert 1 <= len(rig.log) <= 3
    rig.commit()
    assert [seq for seq, _ in rig.stored()] == [1, 2, 3, 4, 5]


def test_an_upstream_without_flow_control(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflow, "MAX_WAITING_BYTES", 10)
    rig = begun()
    rig.live()
    rig.take(*range(1, 10))
    assert rig.link.live
    rig.send(*range(10, 30))
    assert "more than flow control permits" in rig.error


def test_a_lost_command_is_fetched_again(rig: Rig) -> None:
    rig.live()
    rig.send(1)
    rig.run()
    rig.log.clear()  # its leader lost it
    rig.take(2)
    assert rig.stored() == []
    assert (rig.link.live, rig.error) == (False, "")
    rig.run(3.0)
    assert rig.live(last_seq=2)["deliver_policy"] == "all"
    rig.take(1, 2)
    assert [seq for seq, _ in rig.stored()] == [1, 2]


# ---- upstreams that change


def test_a_mirror_does_not_mix_two_streams(rig: Rig) -> None:
    rig.live()
    rig.take(1, 2)
    rig.begin_again()
    rig.inform(50, created="2027-01-01T00:00:00Z")
    rig.answer("MSG.GET", {"message": {"subject": "up", "seq": 2, "time": "2027-01-01T00:00:01Z", "data": "eA=="}})
    assert "created again" in rig.error
    assert rig.count("CONSUMER.CREATE") == 1


def test_a_mirror_goes_on_with_an_upstream_from_its_archive(rig: Rig) -> None:
    rig.live()
    rig.take(1, 2)
    rig.begin_again()
    rig.inform(50, created="2027-01-01T00:00:00Z")
    rig.answer("MSG.GET", told(2, b"2"))
    rig.accept(delivered=2)
    rig.commit()
    rig.take(3)
    assert [seq for seq, _ in rig.stored()] == [1, 2, 3]


def mirrored(answer: dict[str, Any], headers: bytes, **config: Any) -> str:
    """Plays a mirror whose upstream was created anew and answers the question for message 2; returns the error."""
    rig = begun(mirror={"name": "UP", **config})
    rig.live()
    rig.take(1, 2, headers=headers)
    rig.begin_again()
    rig.inform(50, created="2027-01-01T00:00:00Z")
    rig.answer("MSG.GET", answer)
    return rig.error


BARE = b"NATS/1.0\r\n\r\n"


@pytest.mark.parametrize("headers", [block("Nats-Expected-Stream: UP"), BARE])
def test_a_message_with_instructions_only_has_no_headers_in_a_mirror(headers: bytes) -> None:
    rig = begun(**MIRROR)
    rig.live()
    rig.take(1, headers=headers)
    assert [message.headers for message in rig.store.queries.scan(b">", 1)] == [b""]
    assert mirrored(told(2, b"2", headers), headers) == ""


@pytest.mark.parametrize("headers", [b"", block("A: 1"), block("A: 1", "Nats-Expected-Stream: UP")])
def test_a_mirror_compares_headers_and_time_too(headers: bytes) -> None:
    assert mirrored(told(2, b"2", headers), headers) == ""
    for other in (told(2, b"2", block("A: 2")), told(2, b"2", headers, "2001-09-09T01:46:41Z"), told(2, b"1", headers)):
        assert "created again" in mirrored(other, headers)


def test_a_mirror_that_transforms_subjects_knows_its_restored_upstream() -> None:
    transforms = [{"src": "up", "dest": "down"}]
    assert mirrored(told(2, b"2"), b"", subject_transforms=transforms) == ""


@pytest.mark.parametrize("config", [MIRROR, SOURCE])
def test_an_upstream_that_went_back(config: dict[str, Any]) -> None:
    rig = begun(**config)
    rig.live()
    rig.take(1, 2, 3)
    rig.begin_again()
    rig.inform(2)
    assert "went back to sequence 2, 3 was read" in rig.error


def test_a_source_reads_the_new_upstream_from_its_beginning() -> None:
    rig = begun(sources=[{"name": "UP", "opt_start_seq": 2}])
    assert rig.live()["opt_start_seq"] == 2
    rig.take(2, 3)
    rig.begin_again()
    rig.inform(1, created="2027-01-01T00:00:00Z")
    assert rig.accept()["deliver_policy"] == "all"
    rig.commit()
    rig.take(1)
    assert [payload for _, payload in rig.stored()] == [b"2", b"3", b"1"]


# ---- sources


def test_a_source_says_where_messages_come_from() -> None:
    source = {"name": "UP", "subject_transforms": [{"src": "up", "dest": "down"}, {"src": "b.>", "dest": ""}]}
    rig = begun(sources=[source])
    config = rig.live()
    assert rig.asked("CREATE")[0] == b"$JS.API.CONSUMER.CREATE.UP"
    assert config["filter_subjects"] == ["up", "b.>"]
    assert rig.deliver.startswith(b"$JS.S.") and config["name"].startswith("JS_SRC_")
    rig.send(7, headers=block("Own: 1", "Nats-Expected-Stream: UP", "Nats-Batch-Id: b", "Nats-Stream-Source: X 1"))
    rig.take(9, subject=b"b.c", pending=4)
    first, second = rig.store.queries.scan(b">", 1)
    assert (first.seq, first.subject) == (1, b"down")
    assert first.headers == block("Own: 1", "Nats-Stream-Source: UP 7 up\fb.> down\f> up " + _identity())
    assert (second.seq, second.subject) == (2, b"b.c")
    shown = rig.link.info()
    assert (shown["lag"], shown["seq"]) == (3, 9)
    assert shown["subject_transforms"] == source["subject_transforms"]
    assert rig.link.lag_seconds > 0


def _identity() -> str:
    import hashlib

    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(digits[b % 62] for b in hashlib.sha256(CREATED.encode()).digest()[:8])


def test_a_mirrors_headers_stay_but_for_orders(rig: Rig) -> None:
    rig.live()
    rig.take(1, headers=block("Own: 1", "Nats-Msg-Id: x", "Nats-Expected-Last-Sequence: 5", "Nats-Stream-Source: X 1"))
    (message,) = rig.store.queries.scan(b">", 1)
    assert message.headers == block("Own: 1", "Nats-Msg-Id: x", "Nats-Stream-Source: X 1")


def test_one_filter_is_in_the_subject() -> None:
    rig = begun(sources=[{"name": "UP", "filter_subject": "a.*", "opt_start_time": "2026-01-01T00:00:00Z"}])
    config = rig.live()
    subject = rig.asked("CREATE")[0]
    assert subject.startswith(b"$JS.API.CONSUMER.CREATE.UP.JS_SRC_") and subject.endswith(b".a.*")
    assert config["filter_subject"] == "a.*"
    assert (config["deliver_policy"], config["opt_start_time"]) == ("by_start_time", "2026-01-01T00:00:00Z")


def test_an_external_upstream() -> None:
    external = {"api": "$JS.hub.API", "deliver": "to.me"}
    rig = begun(mirror={"name": "UP", "external": external})
    rig.run(5.1)  # INFO is not imported
    assert rig.asked("CREATE")[0] == b"$JS.hub.API.CONSUMER.CREATE.UP"
    rig.accept()
    assert rig.deliver.startswith(b"to.me.M.")
    rig.commit()
    rig.take(1)
    assert rig.stored() == [(1, b"1")]
    assert rig.link.info()["external"] == external


def test_a_source_that_is_known_by_its_messages_alone() -> None:
    rig = Rig(subjects=["x"], sources=[{"name": "UP"}])
    rig.links.begin()
    rig.live()
    rig.take(4, 6)
    rig.links.end()
    rig.configure(subjects=["x"])
    rig.configure(subjects=["x"], sources=[{"name": "UP"}])
    assert rig.machine.cursor(link_key({"name": "UP"})) is None
    rig.links.begin()
    assert rig.live(last_seq=8)["opt_start_seq"] == 7
    rig.take(8)
    assert [payload for _, payload in rig.stored()] == [b"4", b"6", b"8"]


TAKEN = 1_700_000_000
"""Seconds since 1970 at which the rig's clock begins."""


def told(
    seq: int, payload: bytes, headers: bytes = b"", time: str = "2001-09-09T01:46:40.00000000%dZ"
) -> dict[str, Any]:
    """A message of the upstream, as STREAM.MSG.GET tells it."""
    encoded = {"hdrs": base64.b64encode(headers).decode(), "data": base64.b64encode(payload).decode()}
    return {"message": {"subject": "up", "seq": seq, "time": time % seq if "%" in time else time, **encoded}}


def restored(answer: dict[str, Any], headers: bytes = b"") -> str:
    """Plays a source that was restored, and its upstream, which answers the question for message 6; returns where the
    link begins."""
    rig = Rig(subjects=["x"], sources=[{"name": "UP"}])
    rig.links.begin()
    rig.live()
    rig.take(4, 6, headers=headers)
    rig.links.end()
    rig.configure(subjects=["x"])
    rig.configure(subjects=["x"], sources=[{"name": "UP"}])
    rig.links.begin()
    rig.run()
    rig.inform(8, created="2027-01-01T00:00:00Z")
    asked = rig.asked("STREAM.MSG.GET.UP")
    assert json.loads(asked[1]) == {"seq": 6}
    rig.answer("STREAM.MSG.GET.UP", answer)
    config = rig.accept()
    return f"{config['deliver_policy']} {config.get('opt_start_seq', '')}"


def test_a_restored_source_goes_on_at_its_restored_upstream() -> None:
    other = told(6, b"6")
    other["message"]["subject"] = "other"
    assert restored(told(6, b"6")) == "by_start_sequence 7"
    assert restored(told(6, b"5")) == "all "
    assert restored(other) == "all "
    assert restored({"error": {"code": 404, "err_code": 10037, "description": "no message found"}}) == "all "


@pytest.mark.parametrize("headers", [b"", block("A: 1"), block("A: 1", "Nats-Msg-Id: 9", "B: 2"), block()])
def test_headers_tell_whether_a_restored_upstream_has_the_message(headers: bytes) -> None:
    assert restored(told(6, b"6", headers), headers) == "by_start_sequence 7"
    assert restored(told(6, b"6", block("A: 2")), headers) == "all "
    if headers.count(b"\r\n") > 2:
        assert restored(told(6, b"6"), headers) == "all "


def test_a_message_that_is_later_than_its_copy_is_another_one() -> None:
    """Other messages of a new upstream may be equal, such as those of a heartbeat."""
    for time, found in ((TAKEN + 50, "by_start_sequence 7"), (TAKEN + 70, "all ")):
        assert restored(told(6, b"6", time=rfc3339(time * 10**9))) == found


# ---- numbers that cannot be


NUMBERS = [-1, 1 << 63, 1 << 64, 1 << 200, float("inf"), float("nan"), True, "5", None]


@pytest.mark.parametrize("number", NUMBERS)
def test_an_answer_with_numbers_that_cannot_be_fails_the_attempt_and_no_more(number: Any, rig: Rig) -> None:
    rig.inform(number)
    assert "not an answer" in rig.error
    for delivered, pending in ((number, 0), (0, number)):
        rig.run(2.5)
        rig.inform(3)
        rig.accept(delivered, pending)
        assert "not an answer" in rig.error and not rig.log
    rig.run(2.5)
    rig.live(last_seq=3)
    rig.take(1)
    assert rig.stored() == [(1, b"1")]


@pytest.mark.parametrize(
    "numbers",
    [
        (0, 10**18, 0), (-3, 10**18, 0), (1 << 63, 10**18, 0), (1 << 64, 10**18, 0), (1, 10**18, 0),
        (3, 1 << 62, 0), (3, -(1 << 63), 0), (3, 10**18, -1), (3, 10**18, 1 << 63),
    ],
)  # fmt: skip
@pytest.mark.parametrize("config", [MIRROR, SOURCE])
def test_a_delivery_with_numbers_that_cannot_be_gets_nowhere_near_the_log(
    config: dict[str, Any], numbers: tuple[int, int, int]
) -> None:
    """An entry that cannot be applied stops all replicas of the stream, and each again when it starts."""
    rig = begun(**config)
    rig.live(last_seq=9)
    rig.send(1, 2)
    seq, ts, pending = numbers
    rig.bus.arrive(rig.deliver, b"up", b"$JS.ACK.UP.C.1.%d.3.%d.%d" % (seq, ts, pending), b"", b"x")
    rig.commit()
    assert "out of bounds" in rig.error and not rig.link.live
    rig.run(2.5)
    rig.live(last_seq=9)
    rig.take(3, 4)
    assert [payload for _, payload in rig.stored()] == [b"1", b"2", b"3", b"4"][-len(rig.stored()) :]
    assert rig.stored()[-1] == (4 if config is MIRROR else rig.store.last_seq, b"4")


# ---- how close a mirror is


def test_the_log_knows_how_close_it_is(rig: Rig) -> None:
    rig.live(last_seq=5000, pending=5000)
    cursor = rig.machine.cursor(b"")
    assert cursor is not None and cursor.lag == 5000
    rig.take(1, pending=100)
    cursor = rig.machine.cursor(b"")
    assert cursor is not None and cursor.lag == 100
    assert rig.link.info()["lag"] == 99
    rig.control("Nats-Last-Consumer: 1")  # what it had left has been removed since
    rig.commit()
    cursor = rig.machine.cursor(b"")
    assert cursor is not None and cursor.lag == 0
    rig.control("Nats-Last-Consumer: 1")
    assert not rig.log


@pytest.mark.parametrize("deliver", [".", "a..b", "a b", "d\r\n"])
def test_a_place_to_deliver_that_nobody_can_listen_to_is_an_error_of_the_link(deliver: str) -> None:
    """From a configuration of before such were refused."""
    rig = begun(mirror={"name": "UP", "external": {"api": "X.API", "deliver": deliver}})

    def subscribe(subject: bytes, callback: Any, queue: Any = None, **_: Any) -> Any:
        if not is_valid_literal(subject):
            raise ValueError(f"invalid subject {subject!r}")
        return known(subject, callback)

    known, rig.bus.subscribe = rig.bus.subscribe, subscribe  # type: ignore[method-assign]
    rig.run(5.1)
    error = rig.link.info()["error"]
    assert error["err_code"] == 10029 and "invalid subject" in error["description"]
    rig.run(20.0)  # tried again
    assert rig.link.info()["error"] == error or "invalid subject" in rig.link.info()["error"]["description"]


def test_a_subject_that_a_transform_makes_too_long_fails_the_attempt_and_is_logged() -> None:
    transforms = [{"src": "a.*", "dest": "b." + ".".join(["{{wildcard(1)}}"] * 40)}]
    rig = begun(sources=[{"name": "UP", "subject_transforms": transforms}])
    rig.inform()
    rig.accept()
    rig.commit()
    rig.send(1, subject=b"a.y")
    rig.take(2, subject=b"a." + b"x" * 2000)
    assert "the subject of message 2" in rig.link.info()["error"]["description"]
