"""A clean history has no findings; each planted fault is found, and as what it is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.checkers import judge
from chaos.checkers.availability import outages
from chaos.history import History
from jetcluster.pipeline.checkers.batches import value
from jetcluster.pipeline.checkers.event import Event, load, operations

REPLICAS = ("n1", "n2", "n3")


class Script:
    """Builds a history by hand: a clock that stands, and one stored copy per replica and workload."""

    def __init__(self) -> None:
        self.now = 0.0
        self.history = History(clock=lambda: self.now)
        self.seqs: dict[str, int] = {}

    def op(
        self, workload: str, f: str, took: float = 0.01, kind: str = "ok", client: str = "c", **more: object
    ) -> Event:
        invoked = self.history.invoke(workload, f, client, **more)
        self.now += took
        return self.history.end(invoked, kind)

    def stored(self, workload: str, subject: str, msg_id: str, seq: int) -> None:
        for replica in REPLICAS:
            self.history.note(workload, "stored", replica=replica, subject=subject, msg_id=msg_id, seq=seq)

    def write(self, workload: str, subject: str, msg_id: str, f: str = "publish", **more: object) -> int:
        seq = self.seqs[workload] = self.seqs.get(workload, 0) + 1
        self.op(workload, f, subject=subject, msg_id=msg_id, seq=seq, **more)
        self.stored(workload, subject, msg_id, seq)
        return seq


def clean() -> list[Event]:
    script = Script()
    versions = {"r.0": 0, "r.1": 0}
    values = {"r.0": "", "r.1": ""}
    script.history.note("mirrors", "mirror", subject="queue")
    for n in range(20):
        seq = script.write("queue", "q", f"m{n}")
        script.op("mirrors", "direct", subject="q", msg_id=f"m{n}", seq=seq)
        script.stored("mirrors", "q", f"m{n}", seq)
        key = f"r.{n % 2}"
        script.op("register", "read", subject=key, msg_id=values[key], seq=versions[key])
        versions[key] = script.write("register", key, f"v{n}", "cas", expect=versions[key])
        values[key] = f"v{n}"
        script.op("register", "direct", subject=key, msg_id=values[key], seq=versions[key])
        script.op("register", "cas", kind="fail", subject=key, msg_id=f"w{n}", expect=0)
        first = script.seqs.get("batches", 0) + 1
        script.op("batches", "batch", msg_id=f"b{n}", count=3, seq=first + 2)
        for index in range(3):
            script.stored("batches", "b", value(f"b{n}", index), first + index)
        script.seqs["batches"] = first + 2
        seq = script.write("consumers", "c", f"d{n}")
        script.history.note("consumers", "deliver", "x", seq=seq, msg_id=f"d{n}", count=1)
        script.op("consumers", "ack", seq=seq)
    script.history.note("consumers", "drained")
    script.history.note("mirrors", "drained")
    return script.history.events


Change = Callable[[list[Event]], list[Event]]


def drop(**match: object) -> Change:
    return lambda events: [e for e in events if not matches(e, match)]


def change(match: dict[str, object], **fields: object) -> Change:
    def apply(events: list[Event]) -> list[Event]:
        assert any(matches(e, match) for e in events), match
        return [replace(e, **fields) if matches(e, match) else e for e in events]  # type: ignore[arg-type]

    return apply


def add(*more: Event) -> Change:
    return lambda events: [*events, *more]


def matches(event: Event, match: dict[str, object]) -> bool:
    return all(getattr(event, name) == wanted for name, wanted in match.items())


def swap_stored(a: int, b: int) -> Change:
    """Two messages change places on every replica, and in their acks: later writes before earlier ones."""
    other = {a: b, b: a}

    def apply(events: list[Event]) -> list[Event]:
        return [
            replace(e, seq=other[e.seq]) if e.workload == "queue" and e.seq in other and e.type == "ok" else e
            for e in events
        ]

    return apply


def ok(op: int, workload: str, f: str, **more: object) -> Event:
    return Event("ok", op, workload, f, **{"client": "z", "t0": 90.0, "t1": 91.0, **more})  # type: ignore[arg-type]


PLANTED: dict[str, tuple[Change, str]] = {
    "a lost ack on all": (drop(f="stored", workload="queue", msg_id="m7"), "lost"),
    "a lost ack on one replica": (drop(f="stored", workload="queue", msg_id="m7", replica="n2"), "lost"),
    "the last ack lost": (drop(f="stored", workload="queue", msg_id="m19"), "lost"),
    "a replica that is empty": (
        lambda events: [*drop(f="stored", workload="queue", replica="n2")(events),
                        ok(990, "queue", "stored", replica="n2")], "lost"),
    "a value stored twice": (add(ok(900, "queue", "stored", replica="n1", msg_id="m3", seq=21)), "duplicated"),
    "a value acked twice": (add(ok(900, "queue", "publish", msg_id="m3", seq=99)), "duplicated"),
    "two values acked as one": (change({"f": "publish", "msg_id": "m3", "type": "ok"}, seq=5), "moved"),
    "a reorder": (swap_stored(4, 12), "reordered"),
    "a phantom": (add(ok(900, "queue", "stored", replica="n1", msg_id="ghost", seq=21)), "phantom"),
    "a refused write that is stored": (
        add(ok(900, "queue", "stored", replica="n1", msg_id="no", seq=21),
            replace(ok(901, "queue", "publish", msg_id="no"), type="fail")), "phantom"),
    "a hole": (drop(f="stored", workload="queue", seq=9), "gap"),
    "replicas that differ": (change({"f": "stored", "msg_id": "m3", "replica": "n3"}, msg_id="m4"), "diverged"),
    "a stale leader read": (add(ok(900, "register", "read", subject="r.1", msg_id="v1", seq=2)), "stale"),
    "a leader read of nothing": (add(ok(900, "register", "read", subject="r.0", seq=0)), "stale"),
    "a read of a value that is not there": (
        add(ok(900, "register", "direct", subject="r.1", msg_id="v3", seq=2)), "wrong value"),
    "a read from the future": (
        add(ok(900, "register", "direct", subject="r.1", msg_id="v19", seq=20, t0=0.0, t1=0.001)), "wrong value"),
    "a read of what is lost later": (
        add(ok(900, "register", "cas", subject="r.1", msg_id="vx", seq=44, expect=20, t0=80.0),
            ok(901, "register", "direct", subject="r.1", msg_id="vx", seq=44)), "phantom"),
    "a connection that does not see its own write": (
        add(ok(900, "register", "cas", subject="r.1", msg_id="vx", seq=21, expect=20, t0=80.0, t1=81.0),
            ok(901, "register", "direct", subject="r.1", msg_id="v19", seq=20)), "own write"),
    "two winners": (add(ok(900, "register", "cas", subject="r.1", msg_id="vx", seq=21, expect=18)), "double cas"),
    "a write over another": (
        change({"f": "cas", "msg_id": "v9", "type": "ok"}, expect=6), "double cas"),
    "a broken batch": (drop(f="stored", msg_id=value("b4", 1)), "broken batch"),
    "a batch cut at its end": (drop(f="stored", msg_id=value("b19", 2)), "broken batch"),
    "a lost batch": (
        lambda events: [e for e in events if not (e.f == "stored" and e.msg_id.startswith("b4:"))], "lost"),
    "a refused batch that is stored": (change({"f": "batch", "msg_id": "b4", "type": "ok"}, type="fail"), "phantom"),
    "an acked message redelivered": (
        add(ok(900, "consumers", "deliver", seq=3, msg_id="d2", count=1)), "redelivered"),
    "a message skipped": (drop(f="deliver", seq=3), "skipped"),
    "a delivery of something else": (change({"f": "deliver", "seq": 3}, msg_id="d9"), "wrong value"),
}  # fmt: skip

MIRRORED: dict[str, tuple[Change, str]] = {
    "a message that one replica of the mirror lacks": (
        drop(f="stored", workload="mirrors", msg_id="m7", replica="n2"), "lost"),
    "the last message missing": (drop(f="stored", workload="mirrors", msg_id="m19"), "lost"),
    "an empty replica": (
        lambda events: [*drop(f="stored", workload="mirrors", replica="n2")(events),
                        ok(990, "mirrors", "stored", replica="n2")], "lost"),
    "what the origin does not have": (
        add(ok(900, "mirrors", "stored", replica="n1", subject="q", msg_id="ghost", seq=21)), "phantom"),
    "another value": (change({"f": "stored", "workload": "mirrors", "msg_id": "m3"}, msg_id="mx"), "diverged"),
    "another subject": (change({"f": "stored", "workload": "mirrors", "msg_id": "m3"}, subject="p"), "diverged"),
    "one replica of the mirror differs": (
        change({"f": "stored", "workload": "mirrors", "msg_id": "m3", "replica": "n3"}, subject="p"), "diverged"),
    "two that changed places": (
        lambda events: [replace(e, seq={4: 5, 5: 4}.get(e.seq, e.seq)) if e.workload == "mirrors" else e
                        for e in events], "reordered"),
    "a value twice": (
        add(ok(900, "mirrors", "stored", replica="n1", subject="q", msg_id="m3", seq=21)), "duplicated"),
    "a read of something else": (change({"f": "direct", "workload": "mirrors", "seq": 3}, msg_id="m9"), "wrong value"),
    "a read of what is nowhere": (
        add(ok(900, "mirrors", "direct", subject="q", msg_id="m33", seq=33)), "wrong value"),
    "a read before it was sent": (
        add(ok(900, "mirrors", "direct", subject="q", msg_id="m19", seq=20, t0=0.0, t1=0.001)), "wrong value"),
}  # fmt: skip


@pytest.mark.parametrize("name", MIRRORED)
def test_planted_faults_of_a_mirror_are_found(name: str) -> None:
    plant, kind = MIRRORED[name]
    findings = judge(plant(clean())).findings
    assert {finding.workload for finding in findings} == {"mirrors"}
    assert kind in {finding.kind for finding in findings}


def test_a_mirror_that_is_behind_is_a_prefix() -> None:
    """Unless it said that nothing was missing; and a hole is a loss all the same."""
    events = drop(workload="mirrors", f="drained")(clean())
    late = drop(workload="mirrors", f="stored", seq=20)(events)
    assert judge(late).findings == []
    assert {f.kind for f in judge(drop(workload="mirrors", f="stored", seq=9)(late)).findings} == {"lost", "gap"}


def test_a_clean_history_has_no_findings() -> None:
    verdict = judge(clean())
    assert verdict.findings == []
    assert verdict.acked == 20 + 20 + 60 + 20
    assert (verdict.unknown, verdict.unavailable) == (0, 0.0)
    assert verdict.checked == {"queue": 20, "register": 80, "batches": 20, "consumers": 60, "mirrors": 20}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name: str) -> None:
    plant, kind = PLANTED[name]
    kinds = {finding.kind for finding in judge(plant(clean())).findings}
    assert kind in kinds


def test_an_unknown_write_may_be_in_or_out_but_not_twice() -> None:
    def unknown(*rows: Event) -> list[Event]:
        sent = replace(ok(900, "queue", "publish", msg_id="u"), type="invoke", t1=float("inf"))
        return [*clean(), sent, *rows]

    places = [(name, replica) for name in ("queue", "mirrors") for replica in REPLICAS]
    copies = [
        ok(910 + n, name, "stored", replica=replica, subject="q", msg_id="u", seq=21)
        for n, (name, replica) in enumerate(places)
    ]
    again = [replace(copy, op=copy.op + 10, seq=22) for copy in copies]
    assert judge(unknown()).findings == []
    assert judge(unknown()).unknown == 1
    assert judge(unknown(*copies)).findings == []
    assert {f.kind for f in judge(unknown(*copies, *again)).findings} == {"duplicated"}


def test_a_write_that_is_acked_at_the_second_try_began_with_the_first() -> None:
    """It may be stored before what was acked between its tries."""
    events = clean()
    early = replace(ok(900, "queue", "publish", msg_id="e", t0=-1.0), type="info", t1=0.0)
    late = ok(901, "queue", "publish", msg_id="e", seq=0)
    kinds = [f.kind for f in judge([*events, early, late]).findings]
    assert "reordered" not in kinds
    assert "reordered" in [f.kind for f in judge([*events, late]).findings]


def test_what_a_fault_held_back_may_come_late() -> None:
    events = clean()
    late = ok(900, "consumers", "deliver", seq=3, msg_id="d2", count=1)
    for kind, excused in (("pause", True), ("link", True), ("process", False)):
        fault = Event("ok", 899, kind, "fault", subject="x", t0=80.0, t1=89.5)
        assert judge([*events, fault, late]).findings == [] if excused else judge([*events, fault, late]).findings


def test_reads_during_a_write_may_see_either_version() -> None:
    script = Script()
    script.write("register", "r.0", "a", "cas", expect=0)
    slow = script.history.invoke("register", "cas", "w", subject="r.0", msg_id="b", seq=2, expect=1)
    for seq, found in ((1, "a"), (2, "b")):
        script.now += 1
        script.op("register", "read", subject="r.0", msg_id=found, seq=seq)
    script.now += 1
    script.history.end(slow, "ok")
    script.stored("register", "r.0", "b", 2)
    assert judge(script.history.events).findings == []
    script.op("register", "read", subject="r.0", msg_id="a", seq=1)
    assert [f.kind for f in judge(script.history.events).findings] == ["stale"]


def test_a_read_that_went_back_is_stale_though_the_write_was_never_acked() -> None:
    script = Script()
    script.write("register", "r.0", "a", "cas", expect=0)
    script.history.invoke("register", "cas", "w", subject="r.0", msg_id="b", expect=1)
    script.op("register", "read", subject="r.0", msg_id="b", seq=2)
    script.now += 1
    script.op("register", "read", subject="r.0", msg_id="a", seq=1)
    script.stored("register", "r.0", "b", 2)
    assert [f.kind for f in judge(script.history.events).findings] == ["stale"]


def test_an_own_write_that_is_not_read_is_a_violation_and_counts_as_stale() -> None:
    def written_and_read(f: str) -> list[Event]:
        script = Script()
        for n in range(2):
            script.write("register", "r.0", f"v{n}", "cas", expect=n)
        script.now += 1
        script.op("register", f, subject="r.0", msg_id="v0", seq=1)
        return script.history.events

    own, stale = judge(written_and_read("direct")), judge(written_and_read("read"))
    assert (own.stale, own.kept) == (1, False)
    assert (stale.stale, stale.kept) == (1, False)


def test_outages_are_the_times_without_acks() -> None:
    script = Script()
    for wait in (0.1, 0.1, 3.0, 0.1, 0.9):
        script.op("queue", "publish", took=wait, msg_id="m", seq=1)
    script.op("queue", "publish", msg_id="m", seq=1)
    script.op("register", "cas", took=1.5, msg_id="v", seq=1)
    script.op("register", "cas", msg_id="w", seq=2)
    assert [(round(a, 6), round(b, 6)) for a, b in outages(script.history.events)] == [(0.2, 3.2)]


def test_histories_survive_the_disk(tmp_path: object) -> None:
    events = clean()
    assert load(event.to_json() for event in events) == events
    unfinished = Event("invoke", 1, "queue", "publish", t0=1.0)
    assert [op.type for op in operations([unfinished])] == ["info"]
    with pytest.raises(ValueError, match="line 1 is no event"):
        load(['{"type": "ok", "who": 1}'])


def test_a_hundred_thousand_operations_take_seconds() -> None:
    script = Script()
    dice = random.Random(1)
    version = 0
    for n in range(20_000):
        script.write("queue", "q", f"m{n}")
        if dice.random() < 0.5:
            version = script.write("register", "r", f"v{n}", "cas", expect=version)
    start = time.process_time()
    assert judge(script.history.events).findings == []
    assert time.process_time() - start < 10
