"""Message tracing (ADR-41). What the reports say was compared with nats-server 2.15.2, field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testkit.server_rig import FakePeer, Peer, ServerRig
from tests.unit.consumer.push_rig import frames
from tests.unit.server.test_commands import ALICE, Login, Rules


def headers(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def publish(peer: Peer, subject: bytes, *lines: bytes, payload: bytes = b"x", reply: bytes = b"") -> bytes:
    block = headers(*lines)
    words = b" ".join(word for word in (subject, reply) if word)
    size = b"%d %d" % (len(block), len(block) + len(payload))
    return peer.ask(b"HPUB %b %b" % (words, size), block + payload)


def reports(watcher: Peer) -> list[dict[str, Any]]:
    return [json.loads(frame.payload) for frame in frames(watcher.read()) if frame.subject == b"traces"]


def named(rig: ServerRig, name: bytes, *lines: bytes) -> Peer:
    connect = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"name":"%b"}' % name
    return rig.client(*lines, connect=connect)


def test_a_report_names_who_got_the_message(rig: ServerRig) -> None:
    watcher = named(rig, b"w", b"SUB traces 1")
    taker = named(rig, b"t", b"SUB foo.* 1", b"SUB foo.> q 2", b"SUB foo.> q 3", b"SUB bar 4")
    sender = named(rig, b"s")
    publish(sender, b"foo.a", b"A: 1", b"A: 2", b"Nats-Trace-Dest: traces")
    got = frames(taker.read())
    assert [frame.subject for frame in got] == [b"foo.a", b"foo.a"]
    assert b"Nats-Trace-Dest" in got[0].headers
    (report,) = reports(watcher)
    assert report["server"]["id"] == rig.server.server_id and report["server"]["ver"]
    assert report["request"] == {"header": {"A": ["1", "2"], "Nats-Trace-Dest": ["traces"]}, "msgsize": 50}
    came, first, second = report["events"]
    of = {"sender": sender.connection.cid, "taker": taker.connection.cid}
    assert {key: came[key] for key in ("type", "kind", "cid", "name", "acc", "subj")} == {
        "type": "in", "kind": 0, "cid": of["sender"], "name": "s", "acc": "$G", "subj": "foo.a",
    }  # fmt: skip
    assert (first["type"], first["kind"], first["cid"], first["name"]) == ("eg", 0, of["taker"], "t")
    assert first["sub"] == "foo.*" and "queue" not in first
    assert (second["sub"], second["queue"], second["cid"]) == ("foo.>", "q", of["taker"])
    assert all(event["ts"].endswith("Z") for event in report["events"])


def test_only_traced(rig: ServerRig) -> None:
    watcher = named(rig, b"w", b"SUB traces 1")
    heard: list[bytes] = []
    rig.router.subscribe(b"foo.*", lambda subject, *_: heard.append(subject))
    rig.router.peers.set_interest(FakePeer("BBBBBBBB"), b"foo.a", None, 1)
    taker = named(rig, b"t", b"SUB foo.* 1", b"SUB foo.> q 2", b"SUB foo.> q 3")
    sender = named(rig, b"s")
    publish(sender, b"foo.a", b"Nats-Trace-Dest: traces", b"Nats-Trace-Only: true")
    assert taker.read() == b"" and heard == []
    (report,) = reports(watcher)
    assert [(e["type"], e["kind"], e.get("sub")) for e in report["events"]] == [
        ("in", 0, None), ("eg", 0, "foo.*"), ("eg", 0, "foo.>"), ("eg", 5, None), ("eg", 1, None),
    ]  # fmt: skip
    assert report["events"][-1]["name"] == "BBBBBBBB"


@pytest.mark.parametrize("only", [b"Nats-Trace-Only: false", b"Nats-Trace-Only:", b"A: 1"])
def test_what_does_not_mean_only(only: bytes, rig: ServerRig) -> None:
    watcher, taker = named(rig, b"w", b"SUB traces 1"), named(rig, b"t", b"SUB foo 1")
    publish(named(rig, b"s"), b"foo", b"Nats-Trace-Dest: traces", only)
    assert len(frames(taker.read())) == len(reports(watcher)) == 1


def test_nobody_there(rig: ServerRig) -> None:
    watcher = named(rig, b"w", b"SUB traces 1")
    sender = named(rig, b"s", b"SUB _INBOX.> 1")
    for more in ([], [b"Nats-Trace-Only: 1"]):
        answer = publish(sender, b"nobody", b"Nats-Trace-Dest: traces", *more, reply=b"_INBOX.1")
        assert b"503" in answer
        (report,) = reports(watcher)
        assert [event["type"] for event in report["events"]] == ["in"]


@pytest.mark.parametrize("line", [b"Nats-Trace-Dest: tr aces", b"Nats-Trace-Dest:", b"X-Nats-Trace-Dest: traces"])
def test_without_a_place_to_report_to_it_is_a_message_like_any_other(line: bytes, rig: ServerRig) -> None:
    watcher, taker = named(rig, b"w", b"SUB traces 1"), named(rig, b"t", b"SUB foo 1")
    publish(named(rig, b"s"), b"foo", line, b"Nats-Trace-Only: true")
    assert len(frames(taker.read())) == 1 and reports(watcher) == []


def test_who_may_not_publish_to_the_report_s_subject_does_not_publish_at_all() -> None:
    rig = ServerRig(Login(Rules()))
    got: list[bytes] = []
    rig.server.account("ACC").subscribe(b">", lambda subject, *_: got.append(subject))
    peer = rig.client(connect=ALICE.replace(b"{", b'{"headers":true,', 1))
    answer = publish(peer, b"pub.a", b"Nats-Trace-Dest: traces")
    assert answer == b"-ERR 'Permissions Violation for Publish to \"traces\"'\r\n"
    assert got == []
    publish(peer, b"pub.a", b"Nats-Trace-Dest: pub.traces")
    assert got == [b"pub.a", b"pub.traces"]


def test_subjects_of_the_server_stay_closed(rig: ServerRig) -> None:
    watcher = named(rig, b"w", b"SUB traces 1")
    answer = publish(named(rig, b"s"), b"$NRG.x", b"Nats-Trace-Dest: traces")
    assert b"Permissions Violation" in answer
    assert reports(watcher) == []


def test_a_report_is_bounded_whoever_takes_the_message(rig: ServerRig) -> None:
    watcher = named(rig, b"w", b"SUB traces 1")
    named(rig, b"t", *[b"SUB foo %d" % number for number in range(1500)])
    sender = named(rig, b"s")
    lines = [b"h%d: y" % number for number in range(2000)]
    publish(sender, b"foo", b"Nats-Trace-Dest: traces", b"Nats-Trace-Only: 1", *lines)
    (report,) = reports(watcher)
    assert len(report["events"]) == 1001
    assert 300 < len(report["request"]["header"]) < 600 and report["request"]["header"]["Nats-Trace-Only"] == ["1"]
    assert report["request"]["msgsize"] > 18_000
    publish(sender, b"foo", b"Nats-Trace-Dest: traces")
    (report,) = reports(watcher)
    assert len(report["events"]) == 1001


def test_a_report_is_no_longer_than_a_message_may_be() -> None:
    rig = ServerRig(max_payload=20_000)
    watcher = named(rig, b"w", b"SUB traces 1")
    named(rig, b"t", *[b"SUB foo %d" % number for number in range(900)])
    sender = named(rig, b"s")
    publish(sender, b"foo", b"Nats-Trace-Dest: traces", b"Nats-Trace-Only: 1")
    (frame,) = frames(watcher.read())
    report = json.loads(frame.payload)
    assert 10_000 < len(frame.payload) <= 20_000 and 100 < len(report["events"]) < 900
