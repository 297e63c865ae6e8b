from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from jetcluster.consumer import info
from jetcluster.consumer.state import turn
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.table import MAX_SESSIONS, Sessions
from jetcluster.consumer.state.turn import Op, SentMessages, Turn, TurnResult
from jetcluster.errors import ApiError
from jetcluster.store import transfer
from jetcluster.stream.apply.machine import StateError
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import CommandError, UnknownCommandError
from jetcluster.stream.ports import SIDE_CONSUMERS, SIDE_EXHAUSTED, SIDE_PENDING, SIDE_SESSIONS, SIDE_WAITING
from tests.unit.consumer.replica_rig import OWNER, SECOND, T0, Node
from tests.unit.store.shipping import steps

SIDES = (SIDE_CONSUMERS, SIDE_EXHAUSTED, SIDE_PENDING, SIDE_WAITING, SIDE_SESSIONS)


class Notes:
    """A `TableObserver` that remembers, and reads the table while it is called."""

    def __init__(self, node: Node) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.node = node
        node.table.observe(self)

    def created(self, state: ConsumerState) -> None:
        self.told.append(("created", state.name, self.node.table.count))

    def updated(self, state: ConsumerState, old_rules: ConsumerRules) -> None:
        self.told.append(("updated", state.name, old_rules.config.get("description"), state.rules is old_rules))

    def deleted(self, state: ConsumerState) -> None:
        self.told.append(("deleted", state.name, self.node.table.count))

    def owner_changed(self, state: ConsumerState, old_owner: str) -> None:
        self.told.append(("owner_changed", state.name, old_owner, state.owner, state.epoch))

    def paused(self, state: ConsumerState) -> None:
        self.told.append(("paused", state.name, state.rules.pause_until))

    def restored(self) -> None:
        self.told.append(("restored", self.node.table.count))

    def reset(self, state: ConsumerState) -> None:
        self.told.append(("reset", state.name, state.epoch, state.delivered_sseq))

    def freed(self, state: ConsumerState, seqs: Sequence[int]) -> None:
        self.told.append(("freed", state.name, list(state.pending), list(seqs)))

    def turn_applied(self, turn: Turn, result: TurnResult) -> None:
        self.told.append(("turn", turn.serial, result.accepted, len(result.outcomes)))

    def reloaded(self) -> None:
        self.told.append(("reloaded", self.node.table.count))


def rows(node: Node, table: int) -> dict[bytes, bytes]:
    node.kv.commit()
    return dict(node.store.side_scan(table))


def move(node: Node, *moves: list[Any]) -> Any:
    return node.extended(commands.CONSUMER_OWNER, {"moves": list(moves)})


def pause(node: Node, until: int, name: str = "C") -> Any:
    return node.extended(commands.CONSUMER_PAUSE, {"name": name, "pause_until": until})


def reset(node: Node, seq: int, name: str = "C") -> Any:
    return node.extended(commands.CONSUMER_RESET, {"name": name, "seq": seq})


def test_the_observer_is_called_for_every_change_once_it_is_there(n: Node) -> None:
    notes = Notes(n)
    n.publish(b"a")
    n.create(description="x")
    n.create(description="x")
    n.create(description="y")
    n.deliver(1)
    move(n, [1, 1, "other"], [1, 1, "late"], [9, 1, "nobody"])
    pause(n, T0 + SECOND)
    reset(n, 0)
    n.delete()
    n.delete()
    assert notes.told == [
        ("created", "C", 1),
        ("updated", "C", "x", False),
        ("turn", 1, True, 1),
        ("owner_changed", "C", "OWNERone", "other", 2),
        ("paused", "C", T0 + SECOND),
        ("reset", "C", 3, 0),
        ("deleted", "C", 0),
    ]


def test_ids_are_never_used_twice(n: Node) -> None:
    assert [n.create("A"), n.create("B"), n.delete("B"), n.create("B")] == [1, 2, 1, 3]
    n.delete("B")
    n.restart()
    assert n.create("B") == 4
    assert n.table.count == n.machine.consumer_count == 2
    assert n.table.by_cid[4] is n.table.by_name["B"]


def test_consumers_of_mirrors_and_sources_do_not_count_for_clients(n: Node) -> None:
    n.create("A")
    n.create("LINK", deliver_subject="d", ack_policy="none", direct=True)
    assert (n.table.count, n.table.public_count, n.machine.consumer_count) == (2, 1, 1)


def test_delete_by_name_or_by_name_and_id(n: Node) -> None:
    n.create("A")
    n.create("B")
    result = n.delete("A", cid=2)
    assert isinstance(result, ApiError) and result.err_code == 10014
    assert n.delete("A", cid=1) == 1 and n.delete("B") == 1
    assert n.delete("B").err_code == 10014


def test_a_turn_out_of_its_session_is_void(n: Node) -> None:
    notes = Notes(n)
    n.publish(b"a", b"a")
    n.create()
    n.deliver(1)
    for session, serial in ((1, 1), (1, 3), (2, 2)):
        body = turn.encode(OWNER, session, serial, [Op(1, 1, turn.DELIVER, [2])])
        result = n.apply(commands.encode_extended(n.now, commands.CONSUMER_TURN, body))
        assert isinstance(result, TurnResult) and not result.accepted and not result.outcomes
        assert notes.told[-1] == ("turn", serial, False, 0)
    assert n.table.session_of(OWNER) == (1, 1) and n.table.session_of(b"somebody") is None
    assert n.deliver(2) == SentMessages(2, [2], None)


def test_ops_of_a_former_owner_or_for_nobody_are_void_and_the_others_count(n: Node) -> None:
    n.publish(b"a", b"a")
    n.create("A")
    n.create("B")
    move(n, [1, 1, "other"])
    result = n.turn([Op(1, 1, turn.DELIVER, [1]), Op(2, 1, turn.DELIVER, [1]), Op(7, 1, turn.WAIT, b"x")])
    assert result.outcomes == [None, SentMessages(1, [1], None), None]
    assert n.state("A").delivered_sseq == 0
    assert n.turn([Op(1, 2, turn.DELIVER, [1])]).outcomes == [SentMessages(1, [1], None)]


def test_owners_move_only_from_the_epoch_that_was_seen(n: Node) -> None:
    n.create("A")
    n.create("B")
    assert move(n, [1, 1, "x"], [2, 5, "x"], [3, 1, "x"]) == 1
    assert (n.state("A").owner, n.state("A").epoch, n.state("B").owner) == ("x", 2, "OWNERone")


def test_pause_and_resume(n: Node) -> None:
    n.create()
    assert pause(n, n.now + 5) == 1
    assert n.state().rules.pause_until == n.now + 5
    n.restart()
    assert n.state().rules.config["pause_until_ns"] == n.now + 5
    assert pause(n, n.now) == 1  # in the past
    assert n.state().rules.pause_until == 0 and "pause_until_ns" not in n.state().rules.config
    pause(n, 10**30)  # the year is beyond what 64 bits hold
    n.restart()
    assert n.state().rules.pause_until == 10**30
    assert pause(n, 0) == 1 and not n.state().rules.pause_until
    assert pause(n, 0, "none").err_code == 10014


def test_reset(n: Node) -> None:
    n.publish(*[b"a"] * 10)
    n.create()
    n.deliver(1, 2, 3)
    n.ack(1)
    assert reset(n, 0) == 2
    assert n.floors() == (0, 1, 0, 1) and not n.state().pending and n.state().epoch == 2
    assert n.turn([Op(1, 1, turn.DELIVER, [4])]).outcomes == [None]  # decided before
    assert n.deliver(2) == SentMessages(1, [2], None)
    assert reset(n, 50) == 50
    assert n.floors() == (0, 49, 0, 49)
    assert reset(n, 2**64 - 1) == 2**64 - 1
    n.restart()
    assert n.state().delivered_sseq == 2**64 - 2
    assert reset(n, 2**64).err_code == 10204
    assert reset(n, 1, "none").err_code == 10014
    assert reset(n, 1) == 1


@pytest.mark.parametrize("newest", [True, False])
def test_a_reset_delivers_the_last_of_each_subject_as_of_now(n: Node, newest: bool) -> None:
    """`newest` is left out while an older server is a member, to which the last ones are those of the creation."""
    n.publish(b"a", b"b", b"a")
    n.create(deliver_policy="last_per_subject", filter_subject=">")
    n.deliver(2, 3)
    n.publish(b"a", b"b", b"b")
    fields = {"name": "C", "seq": 0} | ({"newest": True} if newest else {})
    assert n.extended(commands.CONSUMER_RESET, fields) == 2
    upto = 6 if newest else 3
    assert n.state().last_per_subject_upto == upto
    assert info.num_pending(n.state(), n.store) == (2 if newest else 5)
    n.restart()
    assert n.state().last_per_subject_upto == upto


def test_a_reset_to_the_floor_after_a_purge(n: Node) -> None:
    n.publish(*[b"a"] * 10)
    n.create()
    n.deliver(1, 2, 3)
    n.apply(commands.encode_purge(n.now))
    assert reset(n, 0) == 11


def test_where_a_reset_may_go(n: Node) -> None:
    n.publish(*[b"a"] * 10)
    n.create("seq", deliver_policy="by_start_sequence", opt_start_seq=3)
    n.create("time", deliver_policy="by_start_time", opt_start_time_ns=n.now + 4)
    n.create("new", deliver_policy="new")
    texts = {name: reset(n, 2, name) for name in ("seq", "time", "new")}
    assert {name: (error.err_code, error.description) for name, error in texts.items()} == {
        "seq": (10204, "invalid reset: below start seq"),
        "time": (10204, "invalid reset: below start time"),
        "new": (10204, "invalid reset: not allowed"),
    }
    assert [reset(n, 3, "seq"), reset(n, 5, "time"), reset(n, 0, "new")] == [3, 5, 11]


def test_what_pends_on_messages_that_are_removed_is_given_up(n: Node) -> None:
    n.create("A")
    n.create("B")
    n.publish(b"a", b"a", b"a", b"b", b"a", b"a", b"a")
    n.deliver(1, 2, 3, 4, 5, 6, name="A")
    n.deliver(5, name="B")
    notes = Notes(n)
    n.apply(commands.encode_delete_msg(n.now, 2))
    n.apply(commands.encode_delete_msg(n.now, 1))
    n.apply(commands.encode_delete_msg(n.now, 7))
    assert notes.told == [("freed", "A", [1, 3, 4, 5, 6], [2]), ("freed", "A", [3, 4, 5, 6], [1])]
    assert n.floors("A") == (6, 6, 2, 2)
    n.apply(commands.encode_purge(n.now, filter=b"b"))
    assert notes.told[2:] == [("freed", "A", [3, 5, 6], [4])]
    n.configure({"max_msgs": 1})
    assert notes.told[3:] == [("freed", "A", [6], [3, 5]), ("freed", "B", [], [5])]
    n.restart()
    assert n.floors("A") == (6, 6, 5, 5) and n.floors("B") == (1, 5, 1, 5)


def test_what_is_delivered_when_it_is_gone_does_not_pend(n: Node) -> None:
    n.create()
    n.publish(*[b"a"] * 6)
    n.apply(commands.encode_purge(n.now, seq=4))
    assert n.deliver(1, 2, 5) == SentMessages(1, [1, 2, 5], None)
    assert list(n.state().pending) == [5] and n.floors() == (3, 5, 2, 4)


def test_trimming_looks_at_consumers_only_when_something_may_pend_there(monkeypatch: pytest.MonkeyPatch) -> None:
    n = Node({"max_msgs": 10})
    for number in range(5):
        n.create(f"C{number}")
    n.publish(*[b"a"] * 10)
    n.deliver(9, name="C3")
    n.publish(b"a")
    looked: list[int] = []
    trim = ConsumerState.trim
    monkeypatch.setattr(ConsumerState, "trim", lambda state, first: (looked.append(first), trim(state, first))[1])
    n.publish(*[b"a"] * 7)
    assert not looked and list(n.state("C3").pending) == [9]
    n.publish(b"a")
    assert looked == [10] * 5 and not n.state("C3").pending


def test_nothing_is_written_between_commits_nor_for_idle_consumers(n: Node) -> None:
    n.publish(*[b"a"] * 1000)
    for name in "ABC":
        n.create(name)
    n.kv.commit()
    written: list[int] = []
    put = n.store.side_put
    n.store.side_put = lambda table, key, value: (written.append(table), put(table, key, value))[1]  # type: ignore[method-assign]
    for seq in range(1, 201):
        n.deliver(seq, name="B")
    assert not written
    n.kv.commit()
    assert sorted(written) == [SIDE_CONSUMERS, *[SIDE_PENDING] * 4, SIDE_SESSIONS]
    n.publish(b"a")
    n.kv.commit()
    assert len(written) == 6


def test_rows_go_with_their_consumer() -> None:
    n = Node({"retention": "interest"})
    n.create("A", max_deliver=1)
    n.create("B")
    before = {table: rows(n, table) for table in SIDES}
    n.publish(*[b"a"] * 600)
    n.create("C", max_deliver=1)
    n.deliver(*range(1, 601))
    n.op(turn.EXHAUSTED, [7])
    n.op(turn.WAIT, b"_INBOX.x")
    assert [len(rows(n, table)) for table in SIDES] == [4, 1, 10, 1, 1]
    n.op(turn.WAIT, b"_INBOX.y")  # not written yet
    n.delete("C")
    for table in (SIDE_PENDING, SIDE_WAITING, SIDE_EXHAUSTED):
        assert rows(n, table) == before[table] == {}
    assert len(rows(n, SIDE_CONSUMERS)) == 3


def test_a_consumer_that_comes_and_goes_before_a_commit_leaves_nothing(n: Node) -> None:
    n.create("A")
    n.publish(b"a")
    n.deliver(1, name="A")
    n.op(turn.WAIT, b"x", "A")
    n.delete("A")
    assert [len(rows(n, table)) for table in (SIDE_CONSUMERS, SIDE_PENDING, SIDE_WAITING)] == [1, 0, 0]


def test_an_installed_snapshot_replaces_everything() -> None:
    n, other = Node({"retention": "interest"}), Node()
    n.create("C", max_deliver=2)
    n.publish(*[b"a"] * 5)
    n.deliver(1, 2, 3)
    n.op(turn.REDELIVER, [1, 2])
    n.op(turn.EXHAUSTED, [2])
    n.op(turn.WAIT, b"_INBOX.x")
    other.create("X")
    other.publish(b"a")
    other.deliver(1, name="X")
    notes = Notes(other)
    other.install(n)
    assert notes.told == [("reloaded", 1)]
    assert set(other.table.by_name) == {"C"} and other.table.count == 1
    state, copy = n.state(), other.state()
    assert copy is not state and copy.pending == state.pending and copy.waiting == state.waiting
    assert copy.exhausted.keys == state.exhausted.keys == {2: None}
    assert copy.unacked.redelivered == 1
    assert other.table.session_of(OWNER) == n.table.session_of(OWNER)
    assert other.everything() == n.everything()
    assert n.ack(1) == other.ack(1)
    assert other.everything() == n.everything()


def with_consumers(node: Node, names: str) -> None:
    """Each of them has messages pending, requests waiting, and messages that are exhausted."""
    for name in names:
        node.create(name, max_deliver=2)
    node.publish(*[b"a.%d" % (number % 7) for number in range(200)])
    for name in names:
        node.deliver(*range(1, 150), name=name)
        node.op(turn.REDELIVER, [1, 2, 3], name)
        node.op(turn.EXHAUSTED, [2, 3], name)
        for number in range(5):
            node.op(turn.WAIT, b"_INBOX.%d.%b" % (number, name.encode()), name)


def test_a_restart_after_any_range_of_an_import_finds_nothing_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows on disk are of two histories then: pending ones of consumers that are gone, and the other way round."""
    monkeypatch.setattr(transfer, "RANGE_BYTES", 1)
    there, here = Node({"max_msgs": 1000}), Node()
    for each in (there, here):
        with_consumers(each, "ABC")
    for gone in "AC":
        there.delete(gone)
    there.ack(*range(1, 130), name="B")
    with_consumers(there, "XY")
    with_consumers(here, "VW")
    here.delete("B")
    giver = there.store.export()
    restarts = 0
    while True:
        parts = steps(giver, here.store.import_begin(), here.kv)
        if len(list(itertools.islice(parts, restarts))) < restarts:
            break
        here.restart()
        restarts += 1
        assert here.store.incomplete
        assert (here.table.count, here.machine.applied_index, here.machine.jobs) == (0, 0, 0)
        assert not any(list(here.store.side_scan(table)) for table in SIDES)
    assert restarts > 50, "too few ranges: the test shows nothing"
    for _ in here.store.import_end():
        pass
    here.machine.reload()
    assert set(here.table.by_name) == {"B", "X", "Y"}
    assert here.everything() == there.everything()
    here.index, here.now, here.serial = there.index, there.now, there.serial
    assert here.ack(140, name="B") == there.ack(140, name="B")
    assert here.everything() == there.everything()


def test_the_hash_sees_what_ops_do() -> None:
    """Two replicas whose states differ do not keep the same hash, although commands and messages are the same."""
    n, other = Node(), Node()
    for each in (n, other):
        each.publish(b"a", b"a")
        each.create()
        each.deliver(1, 2)
    assert n.machine.hash == other.machine.hash
    other.state().unacked.take([1])
    n.ack(2)
    other.ack(2)
    assert n.machine.hash != other.machine.hash


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (18, b"x"),
        (19, b"x"),
        (19, b"[]"),
        (19, b'{"name":"C"}'),
        (19, b'{"name":"C","cid":-1}'),
        (20, b"x"),
        (21, b'{"name":"C","pause_until":"soon"}'),
        (22, b'{"name":"C","seq":1.5}'),
        (23, b'{"moves":[[1,1]]}'),
        (23, b'{"moves":7}'),
        (24, b"{}"),
        (31, b"{}"),
    ],
)
def test_what_is_no_command_is_an_error(kind: int, body: bytes, n: Node) -> None:
    """The replica stops at kinds that only later versions know; the others are refused (`stream.apply.applier`)."""
    n.create()
    with pytest.raises(CommandError) as raised:
        n.apply(commands.encode_extended(n.now, kind, body))
    assert isinstance(raised.value, UnknownCommandError) == (kind > 23)


@pytest.mark.parametrize(("table", "key"), [(SIDE_CONSUMERS, b"\0\0\0\1"), (SIDE_PENDING, b"\0\0\0\7" + bytes(8))])
def test_rows_of_another_version_are_not_taken_for_ours(table: int, key: bytes, n: Node) -> None:
    n.create()
    n.kv.commit()
    n.store.side_put(table, key, b"\xff" * 200)
    with pytest.raises(StateError):
        n.restart()


def test_bodies_are_json_objects_of_the_design(n: Node) -> None:
    body = {"name": "C", "config": {}, "action": "", "created": n.now, "owner": "p", "request": "r"}
    n.apply(commands.encode_extended(n.now, 18, json.dumps(body).encode()))
    assert n.state().created == n.now and n.state().owner == "p" and n.state().rules.filters == (b">",)


ONE, TWO = b"ownerONE", b"ownerTWO"


def accept(sessions: Sessions, session: int, serial: int, *, first: bool = False, owner: bytes = ONE) -> bool:
    return sessions.accept(Turn(owner, session, serial, first, []))


def test_turns_count_in_order_and_without_a_gap() -> None:
    sessions = Sessions()
    assert not accept(sessions, 5, 1)  # nothing began
    assert accept(sessions, 5, 10, first=True)
    assert accept(sessions, 5, 11)
    assert not accept(sessions, 5, 11)  # again
    assert not accept(sessions, 5, 13)  # 12 is missing
    assert accept(sessions, 5, 12)
    assert not accept(sessions, 4, 13)  # another session
    assert sessions.of(ONE) == (5, 12)
    assert sessions.of(TWO) is None


def test_sessions_count_up_and_what_is_late_is_void() -> None:
    sessions = Sessions()
    assert accept(sessions, 5, 0, first=True)
    assert accept(sessions, 6, 0, first=True)
    assert not accept(sessions, 5, 1)
    assert not accept(sessions, 5, 0, first=True)
    assert not accept(sessions, 6, 0, first=True)
    assert accept(sessions, 6, 1)


def test_owners_do_not_disturb_each_other() -> None:
    sessions = Sessions()
    accept(sessions, 5, 0, first=True)
    assert accept(sessions, 1, 0, first=True, owner=TWO)
    assert accept(sessions, 5, 1) and accept(sessions, 1, 1, owner=TWO)


def test_rows_bring_it_back() -> None:
    rows: dict[bytes, bytes] = {}
    sessions = Sessions()
    accept(sessions, 5, 0, first=True)
    accept(sessions, 9, 3, first=True, owner=TWO)
    sessions.write(rows.__setitem__, rows.__delitem__)
    accept(sessions, 5, 1)
    written: list[bytes] = []
    sessions.write(lambda key, value: (written.append(key), rows.update({key: value}))[0], rows.__delitem__)
    assert written == [ONE]
    again = Sessions(rows.items())
    assert again.of(ONE) == (5, 1) and again.of(TWO) == (9, 3)
    assert accept(again, 5, 2)


def test_the_oldest_session_is_forgotten_when_there_are_too_many() -> None:
    rows: dict[bytes, bytes] = {}
    sessions = Sessions()
    owners = [b"owner%03d" % number for number in range(MAX_SESSIONS + 1)]
    for owner in owners[:-1]:
        accept(sessions, 1, 0, first=True, owner=owner)
    accept(sessions, 2, 0, first=True, owner=owners[0])  # a new start makes it young
    sessions.write(rows.__setitem__, rows.__delitem__)
    accept(sessions, 1, 0, first=True, owner=owners[-1])
    sessions.write(rows.__setitem__, rows.__delitem__)
    assert sessions.of(owners[1]) is None and sessions.of(owners[0]) == (2, 0)
    assert len(rows) == MAX_SESSIONS and owners[1] not in rows
    assert not accept(sessions, 1, 1, owner=owners[1])
    # After a restart the same one would go next.
    again = Sessions(rows.items())
    for either in (sessions, again):
        accept(either, 1, 0, first=True, owner=owners[1])
        assert either.of(owners[2]) is None and either.of(owners[3]) is not None


class Walked(dict[int, ConsumerState]):
    """Counts the walks over all consumers."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1  # runs with the first step of a walk
        yield from super().values()


def test_a_consumer_is_created_updated_and_deleted_without_a_look_at_the_others() -> None:
    n = Node({"max_consumers": 100})
    for number in range(20):
        n.create(f"C{number}", direct=number < 5)
    n.table.by_cid = walked = Walked(n.table.by_cid)
    n.create("X")
    n.create("X", description="y")
    assert n.table.public_count == n.machine.consumer_count == 16
    n.delete("X")
    n.delete("C0")
    assert walked.walks == 0
    assert (n.table.public_count, n.table.count) == (15, 19)
    n.restart()
    assert (n.table.public_count, n.table.count) == (15, 19)
