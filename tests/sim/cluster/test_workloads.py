"""Each judge of the simulation finds errors planted into a clean history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.pipeline.checkers import fresh
from jetcluster.store.api import Msg
from testkit.sim.deployment import Violation
from tests.sim.cluster import judges, key_judges, letter_judge, replicas, time_judges
from tests.sim.cluster.backup_judge import Backup, Stored

pytestmark = pytest.mark.sim


def log() -> judges.Log:
    """Three messages, the first one acknowledged right before a loss of power at 10 s."""
    history = judges.Log([10.0])
    for seq, text in enumerate(("a", "b", "c"), 1):
        history.send(text)
        history.ack(seq, text, 8.0 + seq)
    return history


STORED = {1: "a", 2: "b", 3: "c"}


def sent_again(apart: float) -> None:
    """A fourth message is sent under an id until it is acknowledged, and stored twice, so many seconds apart."""
    history = log()
    history.send("d", again=True)
    history.stored("n1", STORED | {4: "d", 5: "d"}, (), {4: 7_000_000_000, 5: 7_000_000_000 + int(apart * 1e9)})


ZONED = {"n1": ("az:a", "ssd"), "n2": ("az:b",)}


def deliveries(max_deliver: int = 2, max_ack_pending: int = 2) -> judges.Deliveries:
    """1 is acknowledged, 2 waits."""
    history = judges.Deliveries(max_deliver, max_ack_pending)
    history.take(1, "a", 1, 1)
    history.acking(1)
    history.confirm(1, 1)
    history.take(2, "b", 1, 2)
    return history


def test_a_last_delivery_that_nobody_has_seen_waits_for_no_ack() -> None:
    """The server has 2 for delivered as often as it may be, and goes on with 3 and 4."""
    history = deliveries(max_deliver=2, max_ack_pending=2)
    history.take(3, "c", 1, 4)
    history.take(4, "d", 1, 5)
    with pytest.raises(Violation, match="4 messages wait"):
        history.take(5, "e", 1, 6)


def acks_all(lost: int, acked: int) -> judges.Deliveries:
    """1 and 4 are delivered, and `lost` deliveries between them nobody has seen; an ack of all up to `acked`."""
    history = judges.Deliveries()
    history.take(1, "a", 1, 1)
    history.take(4, "d", 1, 2 + lost)
    history.acking(acked, below=True)
    return history


def registers() -> judges.Registers:
    history = judges.Registers()
    history.learn("k", 1, "a")
    history.learn("k", 4, "b")
    history.read("k", history.newest("k"), 4, "b")
    history.read_own("k", 4, 4)
    return history


FRESH = {seq: fresh.FinalMessage(f"f.{seq % 2}", f"t{seq}") for seq in range(1, 7)}


def looked(**fields: object) -> judges.Fresh:
    """Six messages that were sent and acknowledged a second apart, and one read, from 10 s to 11 s."""
    history = judges.Fresh()
    for seq in FRESH:
        history.send(f"t{seq}", seq - 0.5)
        history.ack(seq, f"t{seq}", float(seq))
    history.send("t7", 10.5)
    history.looks.append(fresh.Look(**{"client": "c", "began": 10.0, "ended": 11.0} | fields))  # type: ignore[arg-type]
    return history


def read(wish: fresh.Demand, *seqs: int, contents: dict[int, fresh.FinalMessage] = FRESH, **fields: object) -> None:
    """A read of the last message of `f.0`, unless `fields` say otherwise, that found these."""
    shape = {} if "start" in fields else {"lasts": ("f.0",)}
    found = tuple((seq, f"t{seq}") for seq in seqs)
    looked(**{"wish": wish, "found": found} | shape | fields).complete(contents)


LINEARIZABLE, SESSION, EVENTUAL = fresh.Demand(fresh.LINEARIZABLE), fresh.Demand(fresh.SESSION), fresh.Demand()
YOUNG = fresh.Demand(max_staleness=5.5)
"""All that was known by 4.5 s is there, up to 4."""
REFUSED = {"refused": fresh.BEHIND, "applied": 3}
BOTH = ("f.0", "f.1")


def batches() -> judges.Batches:
    history = judges.Batches()
    history.send("one", ["a", "b"])
    history.ack("one", 2)
    history.send("two", ["c", "d"])
    return history


def fast_batches() -> judges.FastBatches:
    """One that may have gaps, with the second reported, and one that may not."""
    history = judges.FastBatches()
    history.send("gaps", ["a", "b", "c"], gaps=True)
    history.settled("gaps", 3)
    history.gap("gaps", 2, 3)
    history.ended("gaps", 3)
    history.send("none", ["x", "y", "z"], gaps=False)
    history.settled("none", 1)
    history.send("whole", ["u", "v"], gaps=True)
    history.ended("whole", 2)
    return history


def sums() -> judges.Sums:
    history = judges.Sums()
    for seq, (text, increment, total) in enumerate((("a", 5, 5), ("b", -2, 3)), 1):
        history.send(text, increment)
        history.ack(text, seq, total)
    return history


def chain() -> judges.Chain:
    history = judges.Chain()
    history.send("b", 1)
    history.send("c", "b")
    return history


def kept() -> judges.Kept:
    history = judges.Kept(2)
    for seq in (1, 2, 3):
        history.ack(seq, "s")
    history.ack(4, "other")
    history.ack(5, "other", "sub")
    return history


def ordered() -> judges.Ordered:
    history = judges.Ordered()
    history.take(1, "a")
    history.take(3, "c")
    return history


def guarded() -> judges.Guarded:
    """The first two are archived; the third is there."""
    history = judges.Guarded()
    history.archive(3, {1: "a", 2: "b"})
    history.begins(3)
    history.complete({1: "a", 2: "b", 3: "c"}, {2: "b", 3: "c"})
    return history


def letters() -> letter_judge.Letters:
    """Somebody acknowledged b."""
    history = letter_judge.Letters()
    history.acking("b")
    history.complete(["a", "b"], sent("a"))
    history.complete(["a", "b"], sent("a", "b"))
    return history


def sent(*texts: str, target: str = "dead", given_up: int = 1) -> list[letter_judge.Letter]:
    return [letter_judge.Letter(target, f"{text}:{given_up}", text) for text in texts]


def reset() -> letter_judge.Letters:
    """The consumer was reset once: a may have been given up twice."""
    history = letters()
    history.resets += 1
    history.complete(["a", "b"], sent("a") + sent("a", given_up=2))
    return history


def in_turn(limit: int = 1) -> key_judges.InTurn:
    """1 and 4 are of key a, and 1 is settled; 2 is of key b and is out, 3 of b was not delivered."""
    history = key_judges.InTurn(limit)
    for seq, key in ((1, "a"), (2, "b"), (3, "b"), (4, "a")):
        history.stored(seq, key)
    history.take(1, "a")
    history.settling(1)
    history.take(2, "b")
    return history


def one_owner() -> key_judges.OneOwner:
    """At 10: c has 1 and 2 of key a for 2 s, 3 of a is settled, d has 4 of b."""
    history = key_judges.OneOwner(2.0)
    for seq, key, client in ((1, "a", "c"), (2, "a", "c"), (3, "a", "c"), (4, "b", "d")):
        history.take(seq, key, client, 1, 10.0)
    history.settling(3)
    return history


def later(due: float) -> float:
    return due + 1.0


def lifetimes() -> time_judges.Lifetimes:
    """Sent at 10, acknowledged at 11, to live for 5 s."""
    history = time_judges.Lifetimes()
    history.ack(1, 10.0, 11.0, 5.0)
    history.ack(2, 10.0, 11.0)
    return history


def firings() -> time_judges.Firings:
    history = time_judges.Firings()
    history.put("a", "2023-11-14T22:13:20.000000Z")
    history.put("b", "2023-11-14T22:13:21.500000Z")
    return history


FIRED = [("b", "2023-11-14T22:13:21.500000Z"), ("a", "2023-11-14T22:13:25.000000Z")]


ORIGINAL = {seq: Stored("s", f"at {seq}", (("Own", text),), text.encode()) for seq, text in STORED.items()}
"""Messages that the original of `backup` has had."""
GONE = {2: b"b"}
"""2 was removed, before the archive was taken or since."""


def backup(removed: tuple[int, ...] = ()) -> Backup:
    """1 was acknowledged to the consumer when the archive was asked for, 3 came while it was opened, and 2 went then,
    or before (`removed`)."""
    history = Backup({1: b"a"} if removed else {1: b"a", 2: b"b"}, removed, [1])
    count = 2 if removed else 3
    history.opened({"messages": count, "first_seq": 1, "last_seq": 3}, [2], [1])
    return history


def restored(contents: dict[int, Stored], removed: tuple[int, ...] = ()) -> Backup:
    history = backup(removed)
    history.restored("n1", contents, {seq: one for seq, one in ORIGINAL.items() if seq not in GONE}, GONE)
    return history


def message(seq: int, text: str) -> Msg:
    return Msg(seq, 0, b"s", b"", text.encode())


def replica(*texts: str, row: bytes = b"v", digest: bytes = b"h") -> replicas.Contents:
    return [message(seq, text) for seq, text in enumerate(texts, 1)], [(1, b"k", row)], digest


Plant = Callable[[], object]

CLEAN: dict[type, list[Plant]] = {
    judges.Log: [
        lambda: log().stored("n1", STORED),
        lambda: log().read(2, "b"),
        lambda: log().stored("n1", {1: "a", 3: "c"}, [2]),
        lambda: sent_again(120.0),  # its id was forgotten in between
    ],
    judges.Deliveries: [
        lambda: deliveries().take(2, "b", 2, 3),
        lambda: deliveries().take(1, "a", 2, 1),  # it was decided before the ack was confirmed
        lambda: deliveries().complete([1, 2]),
        lambda: acks_all(lost=2, acked=4).complete([1, 2, 3, 4]),  # it said that it has them
    ],
    judges.Exact: [
        lambda: judges.Exact.equal("sequences", [1, 2], [1, 2]),
        lambda: judges.Exact.between("seconds", 2.0, 1.9, 2.0),
    ],
    judges.Registers: [lambda: registers().stored("n1", "k", {1: "a", 4: "b"})],
    judges.Fresh: [
        lambda: read(LINEARIZABLE, 6),
        lambda: read(EVENTUAL),
        lambda: read(EVENTUAL, 2, applied=3, age=7.0),
        lambda: read(SESSION, 4, own=5),
        lambda: read(YOUNG, 4),
        lambda: read(YOUNG, 4, age=5.5),
        lambda: read(fresh.Demand(max_staleness=0.0), 6, age=1.05),  # it took as long to ask the leader
        lambda: read(fresh.Demand(min_last_seq=4), 4),
        lambda: read(fresh.Demand(min_last_seq=4), **REFUSED),
        lambda: read(SESSION, own=4, **REFUSED),
        lambda: read(LINEARIZABLE, refused=fresh.NO_LEADER),
        lambda: read(EVENTUAL, 5, 4, lasts=BOTH),
        lambda: read(EVENTUAL, 3, 4, 5, start=3, most=9),
        lambda: read(LINEARIZABLE, 3, 4, start=3, most=2),
        lambda: read(SESSION, 1, own=6, start=1, applied=5),  # what is stored there never changes
        lambda: read(EVENTUAL, 4, start=3, subject="f.0"),
        lambda: read(LINEARIZABLE, start=7),
    ],
    judges.Batches: [
        lambda: batches().stored("n1", {1: "a", 2: "b"}),
        lambda: batches().stored("n1", {1: "a", 2: "b", 7: "c", 8: "d"}),
    ],
    judges.FastBatches: [
        lambda: fast_batches().stored("n1", ["a", "x", "c", "u", "v"]),
        lambda: fast_batches().stored("n1", ["a", "x", "u", "y", "v", "c", "z"]),
    ],
    judges.Sums: [lambda: sums().stored("n1", [(1, "a", 5), (2, "b", 3)])],
    judges.Copies: [
        lambda: judges.Copies.mirrored("n1", STORED, STORED),
        lambda: judges.Copies.sourced("n1", [STORED, {1: "x"}], ["a", "b", "x", "c"]),
    ],
    Backup: [
        lambda: restored(ORIGINAL).delivered("n1", [2, 3]),
        lambda: restored({1: ORIGINAL[1], 3: ORIGINAL[3]}, (2,)).delivered("n1", [3]),
        lambda: restored(ORIGINAL).went_on("n1", 4),
    ],
    judges.Chain: [lambda: chain().stored("n1", [(1, "a"), (3, "b"), (4, "c")])],
    judges.Kept: [lambda: kept().stored("n1", {2: "", 3: "", 5: ""})],
    judges.Ordered: [lambda: ordered().complete({1: "a", 3: "c", 4: "d"})],
    key_judges.InTurn: [
        lambda: in_turn().take(4, "a"),
        lambda: in_turn().take(2, "b"),
        lambda: in_turn(2).take(3, "b"),
        lambda: (history := in_turn(), history.settling(2), history.take(3, "b")),
    ],
    key_judges.OneOwner: [
        lambda: one_owner().take(5, "a", "c", 1, 11.0),
        lambda: one_owner().take(5, "a", "d", 1, 12.0),
        lambda: one_owner().take(2, "a", "d", 2, 11.0),
        lambda: (
            history := one_owner(),
            history.settling(1),
            history.refusing(2),
            history.take(3, "a", "c", 2, 11.0),
            history.take(5, "a", "d", 1, 11.0),
        ),
    ],
    time_judges.Firings: [lambda: firings().fired("n1", FIRED, {"a": "2023-11-14T22:13:25.000000Z"})],
    letter_judge.Letters: [
        lambda: letters().complete(["a", "b"], sent("a")),
        lambda: letters().complete(["a", "b"], sent("b", "a")),
        lambda: letters().complete(["a", "b"], sent("a") + sent("a", target="buried")),
    ],
    judges.Guarded: [
        lambda: guarded().complete({1: "a", 3: "c"}, {3: "c"}),
        lambda: guarded().complete({2: "b"}, {}),
        lambda: guarded().begins(1),
    ],
    judges.Places: [lambda: judges.Places.placed("S", ZONED, 2, (), "az:")],
    time_judges.Repeats: [lambda: time_judges.Repeats(2).fired("n1", [(10.1, 12.0), (12.0, 14.0), (19.9, 20.0)])],
    time_judges.Lifetimes: [
        lambda: lifetimes().look(1, 13.0, 13.9, True, 1.0, later),
        lambda: lifetimes().look(1, 17.5, 17.6, False, 1.0, later),
        lambda: lifetimes().look(2, 99.0, 99.1, True, 1.0, later),
    ],
}
PLANTED: dict[type, dict[str, Plant]] = {
    judges.Log: {
        "lost": lambda: log().stored("n1", {1: "a", 2: "b"}),
        "moved": lambda: log().stored("n1", {1: "a", 2: "b", 4: "c"}),
        "reordered": lambda: log().stored("n1", {1: "b", 2: "a", 3: "c"}),
        "duplicate": lambda: log().stored("n1", STORED | {4: "a"}),
        "duplicate of what was sent once": lambda: log().stored("n1", STORED | {4: "a"}, (), {4: 200_000_000_000}),
        "duplicate of an id that is known": lambda: sent_again(119.9),
        "phantom": lambda: log().stored("n1", STORED | {4: "x"}),
        "refused and stored": lambda: (
            history := log(),
            history.send("d"),
            history.refuse("d"),
            history.stored("n1", STORED | {4: "d"}),
        ),
        "deleted and there": lambda: log().stored("n1", STORED, [2]),
        "two acks of one sequence": lambda: log().ack(2, "x"),
        "not found": lambda: log().read(2, None),
        "wrong content": lambda: log().read(2, "a"),
    },
    judges.Deliveries: {
        "again after its ack": lambda: deliveries().take(1, "a", 2, 3),
        "twice under one count": lambda: deliveries().take(2, "b", 1, 3),
        "one number for two": lambda: deliveries().take(3, "c", 1, 2),
        "wrong content": lambda: deliveries().take(2, "x", 2, 3),
        "too often": lambda: deliveries(max_deliver=1).take(2, "b", 2, 3),
        "too many wait": lambda: deliveries(max_ack_pending=1).take(3, "c", 1, 3),
        "skipped": lambda: deliveries().complete([1, 2, 3]),
        "skipped below an ack of all": lambda: acks_all(lost=0, acked=4).complete([1, 3, 4]),
        "two skipped and one lost": lambda: acks_all(lost=1, acked=4).complete([1, 2, 3, 4]),
        "lost and not acknowledged": lambda: acks_all(lost=2, acked=1).complete([1, 2, 3, 4]),
    },
    judges.Exact: {
        "another one": lambda: judges.Exact.equal("sequences", [1, 3], [1, 2]),
        "too early": lambda: judges.Exact.between("seconds", 1.8, 1.9, 2.0),
        "too late": lambda: judges.Exact.between("seconds", 2.1, 1.9, 2.0),
    },
    judges.Registers: {
        "stale": lambda: registers().read("k", 4, 1, "a"),
        "nothing where there was something": lambda: registers().read("k", 4, 0, ""),
        "own write missing": lambda: registers().read_own("k", 4, 1),
        "two values of one revision": lambda: registers().learn("k", 4, "x"),
        "one value twice": lambda: registers().learn("k", 9, "b"),
        "lost": lambda: registers().stored("n1", "k", {1: "a"}),
    },
    judges.Fresh: {
        "linearizable and stale": lambda: read(LINEARIZABLE, 4),
        "linearizable and nothing": lambda: read(LINEARIZABLE),
        "linearizable, and behind what was read before": lambda: (
            history := looked(wish=LINEARIZABLE, lasts=("f.0",), found=((6, "t6"),), began=11.0, ended=11.5),
            history.send("t8", 9.0),  # nobody was told of it
            history.looks.append(fresh.Look("d", 10.0, 10.5, EVENTUAL, 0, ("f.0",), found=((8, "t8"),))),
            history.complete(FRESH | {8: fresh.FinalMessage("f.0", "t8")}),
        ),
        "an own write is missing": lambda: read(SESSION, 4, own=6),
        "an own write is missing in a batch": lambda: read(SESSION, 3, 4, own=5, start=3, most=9),
        "less than the token": lambda: read(fresh.Demand(min_last_seq=4), 2),
        "older than was asked for": lambda: read(YOUNG, 2),
        "older than it tells": lambda: read(EVENTUAL, 2, age=5.5),
        "less than it tells": lambda: read(EVENTUAL, 2, applied=4),
        "it tells less than the token": lambda: read(fresh.Demand(min_last_seq=6), 6, applied=5),
        "it tells an age beyond the wish": lambda: read(YOUNG, 4, age=5.6),
        "never written": lambda: read(EVENTUAL, 9),
        "another text": lambda: read(EVENTUAL, found=((6, "t5"),)),
        "before it was sent": lambda: read(
            EVENTUAL, 7, ended=10.2, contents=FRESH | {7: fresh.FinalMessage("f.0", "t7")}, lasts=("f.0",)
        ),
        "of another subject": lambda: read(EVENTUAL, 5),
        "two moments": lambda: read(EVENTUAL, 2, 5, lasts=BOTH),
        "the same twice": lambda: read(EVENTUAL, 4, 6),
        "a hole": lambda: read(EVENTUAL, 3, 5, start=3, most=9),
        "not the next one": lambda: read(EVENTUAL, 6, start=3, subject="f.0"),
        "a batch that ends too early": lambda: read(LINEARIZABLE, 3, 4, start=3, most=9),
        "refused with a token that it has": lambda: read(fresh.Demand(min_last_seq=3), **REFUSED),
        "refused without a token": lambda: read(EVENTUAL, **REFUSED),
        "refused for no leader, which it does not need": lambda: read(EVENTUAL, refused=fresh.NO_LEADER),
        "refused as not caught up, which it does not ask for": lambda: read(EVENTUAL, refused=fresh.LATE),
        "lost": lambda: read(EVENTUAL, contents={seq: FRESH[seq] for seq in range(1, 6)}),
    },
    judges.Batches: {
        "half": lambda: batches().stored("n1", {1: "a", 2: "b", 3: "c"}),
        "lost": lambda: batches().stored("n1", {}),
        "others between": lambda: batches().stored("n1", {1: "a", 2: "b", 5: "c", 7: "d"}),
        "reordered": lambda: batches().stored("n1", {1: "b", 2: "a"}),
        "moved": lambda: batches().stored("n1", {2: "a", 3: "b"}),
        "twice": lambda: batches().stored("n1", {1: "a", 2: "b", 3: "a", 4: "b"}),
    },
    judges.FastBatches: {
        "settled and lost": lambda: fast_batches().stored("n1", ["a", "c", "u", "v"]),
        "a gap that was not reported": lambda: fast_batches().stored("n1", ["a", "x", "u", "v"]),
        "another number": lambda: fast_batches().stored("n1", ["a", "c", "x", "v"]),
        "a hole": lambda: fast_batches().stored("n1", ["a", "c", "x", "z", "u", "v"]),
        "reordered": lambda: fast_batches().stored("n1", ["c", "a", "x", "u", "v"]),
        "twice": lambda: fast_batches().stored("n1", ["a", "c", "x", "x", "u", "v"]),
        "phantom": lambda: fast_batches().stored("n1", ["a", "c", "x", "p", "u", "v"]),
    },
    judges.Sums: {
        "lost": lambda: sums().stored("n1", [(1, "a", 5)]),
        "counted twice": lambda: sums().stored("n1", [(1, "a", 5), (2, "b", 3), (3, "a", 8)]),
        "wrong total": lambda: sums().stored("n1", [(1, "a", 5), (2, "b", 4)]),
        "phantom": lambda: sums().stored("n1", [(1, "a", 5), (2, "b", 3), (3, "x", 3)]),
    },
    judges.Copies: {
        "mirror: lost": lambda: judges.Copies.mirrored("n1", STORED, {1: "a", 3: "c"}),
        "mirror: more": lambda: judges.Copies.mirrored("n1", STORED, STORED | {4: "d"}),
        "mirror: moved": lambda: judges.Copies.mirrored("n1", STORED, {1: "a", 2: "c", 3: "b"}),
        "sources: lost": lambda: judges.Copies.sourced("n1", [STORED], ["a", "c"]),
        "sources: twice": lambda: judges.Copies.sourced("n1", [STORED], ["a", "b", "b", "c"]),
        "sources: reordered": lambda: judges.Copies.sourced("n1", [STORED], ["a", "c", "b"]),
        "sources: more": lambda: judges.Copies.sourced("n1", [STORED], ["a", "b", "c", "x"]),
    },
    Backup: {
        "lost": lambda: restored({2: ORIGINAL[2], 3: ORIGINAL[3]}),
        "removed and there": lambda: restored(ORIGINAL, (2,)),
        "fewer than it has": lambda: restored({1: ORIGINAL[1], 2: ORIGINAL[2]}),
        "more than it has": lambda: restored(ORIGINAL | {4: ORIGINAL[3]}),
        "moved": lambda: restored({1: ORIGINAL[1], 2: ORIGINAL[2], 4: ORIGINAL[3]}),
        "another time": lambda: restored(ORIGINAL | {3: ORIGINAL[3]._replace(time="at 4")}),
        "without headers": lambda: restored(ORIGINAL | {3: ORIGINAL[3]._replace(headers=())}),
        "another payload of what has gone since": lambda: restored(ORIGINAL | {2: ORIGINAL[2]._replace(payload=b"x")}),
        "a sequence twice": lambda: restored(ORIGINAL).went_on("n1", 3),
        "acknowledged and again": lambda: restored(ORIGINAL).delivered("n1", [1, 2, 3]),
        "never acknowledged and skipped": lambda: restored(ORIGINAL).delivered("n1", [2]),
    },
    judges.Chain: {
        "something between": lambda: chain().stored("n1", [(1, "a"), (2, "x"), (3, "b")]),
        "behind another text": lambda: chain().stored("n1", [(1, "a"), (2, "c")]),
    },
    judges.Kept: {
        "gone": lambda: kept().stored("n1", {3: "", 5: ""}),
        "too many": lambda: kept().stored("n1", {1: "", 2: "", 3: "", 5: ""}),
        "not rolled up": lambda: kept().stored("n1", {2: "", 3: "", 4: "", 5: ""}),
    },
    judges.Ordered: {
        "again": lambda: ordered().take(3, "c"),
        "backwards": lambda: ordered().take(2, "b"),
        "skipped": lambda: ordered().complete({1: "a", 2: "b", 3: "c"}),
        "wrong content": lambda: ordered().complete({1: "a", 3: "x"}),
    },
    judges.Places: {
        "one too few": lambda: judges.Places.placed("S", {"n1": ("az:a",)}, 2, (), "az:"),
        "without a tag": lambda: judges.Places.placed("S", ZONED, 2, ("ssd",), "az:"),
        "two in a zone": lambda: judges.Places.placed("S", ZONED | {"n3": ("az:a", "ssd")}, 3, (), "az:"),
    },
    time_judges.Repeats: {
        "twice": lambda: time_judges.Repeats(2).fired("n1", [(10.1, 12.0), (10.2, 12.0)]),
        "too early": lambda: time_judges.Repeats(2).fired("n1", [(10.1, 12.0), (11.9, 14.0)]),
        "not after itself": lambda: time_judges.Repeats(2).fired("n1", [(10.1, 10.0)]),
        "another time": lambda: time_judges.Repeats(2).fired("n1", [(10.1, 13.0)]),
    },
    time_judges.Firings: {
        "twice": lambda: firings().fired("n1", [*FIRED, FIRED[0]]),
        "too early": lambda: firings().fired("n1", [("b", "2023-11-14T22:13:21.499999Z")]),
        "too late": lambda: firings().fired("n1", FIRED, {"a": "2023-11-14T22:13:24.999999Z"}),
        "phantom": lambda: firings().fired("n1", [("c", "2023-11-14T22:13:30.000000Z")]),
    },
    key_judges.InTurn: {
        "out at a time": lambda: in_turn().take(3, "b"),
        "out at a time, of unknown age": lambda: in_turn().take(9, "b"),
        "more than the limit": lambda: (history := in_turn(2), history.take(3, "b"), history.take(5, "b")),
        "before an earlier one": lambda: (
            history := key_judges.InTurn(1),
            history.stored(1, "a"),
            history.take(2, "a"),
        ),
        "of another key": lambda: in_turn().take(1, "b"),
    },
    key_judges.OneOwner: {
        "two have a key": lambda: one_owner().take(5, "a", "d", 1, 11.0),
        "the others came again": lambda: (
            history := one_owner(),
            history.settling(1),
            history.take(2, "a", "d", 2, 13.0),
            history.take(5, "a", "c", 1, 14.0),
        ),
    },
    judges.Guarded: {
        "a hole": lambda: guarded().begins(4),
        "removed too soon": lambda: guarded().complete({3: "c"}, {}),
        "archived is another": lambda: guarded().complete({2: "x"}, {}),
        "both, and they differ": lambda: guarded().complete({}, {2: "x"}),
    },
    letter_judge.Letters: {
        "none": lambda: letters().complete(["a", "b", "c"], sent("a")),
        "two": lambda: letters().complete(["a", "b"], sent("a", "b", "b")),
        "two of one id after a reset": lambda: reset().complete(["a", "b"], sent("a", "a")),
        "given up again without a reset": lambda: letters().complete(["a"], sent("a") + sent("a", given_up=2)),
        "given up more often than it was reset": lambda: reset().complete(
            ["a"], sent("a") + sent("a", given_up=2) + sent("a", given_up=3)
        ),
    },
    time_judges.Lifetimes: {
        "gone too early": lambda: lifetimes().look(1, 13.0, 13.5, False, 1.0, later),
        "there too long": lambda: lifetimes().look(1, 18.0, 18.1, True, 1.0, later),
        "gone and without an end": lambda: lifetimes().look(2, 99.0, 99.1, False, 1.0, later),
    },
}


@pytest.mark.parametrize("judge", CLEAN, ids=lambda judge: judge.__name__)
def test_a_clean_history_is_clean(judge: type) -> None:
    for look in CLEAN[judge]:
        look()


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(plant, id=f"{judge.__name__}: {what}")
        for judge, plants in PLANTED.items()
        for what, plant in plants.items()
    ],
)
def test_a_planted_error_is_found(plant: Plant) -> None:
    with pytest.raises(Violation):
        plant()


@pytest.mark.parametrize(
    "other",
    [
        replica("a"),
        replica("a", "x"),
        replica("a", "b", "c"),
        replica("a", "b", row=b"w"),
        replica("a", "b", digest=b"i"),
    ],
)
def test_replicas_that_differ_are_found(other: replicas.Contents) -> None:
    replicas.compare("S", 7, [("n1", replica("a", "b")), ("n2", replica("a", "b"))])
    with pytest.raises(Violation, match="n1 and n3 differ"):
        replicas.compare("S", 7, [("n1", replica("a", "b")), ("n3", other)])
