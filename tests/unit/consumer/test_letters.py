"""Dead letters in the replicated state: ops, rows, retention, archives."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from jetcluster.consumer.state import archived, letters, turn
from jetcluster.consumer.state.letters import MAX_DELIVER, TERMINATED, Letter
from jetcluster.consumer.state.turn import BURIED, BURY, Op
from jetcluster.errors import ApiError
from jetcluster.model.codec import dumps
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import CommandError
from jetcluster.stream.log.levels import DEAD_LETTER_LEVEL, ORDER_PER_KEY_LEVEL
from jetcluster.stream.ports import SIDE_LETTERS
from tests.unit.consumer.replica_rig import OWNER, Node, consumer

LETTER = {"max_deliver": 1, "dead_letter": {"subject": "dead", "on_term": True}}


def node(retention: str = "limits", count: int = 6, **config: Any) -> Node:
    made = Node({"retention": retention})
    assert isinstance(made.create(**{**LETTER, **config}), int)
    made.publish(*[b"a"] * count)
    made.deliver(*range(1, count + 1))
    return made


def waiting(n: Node, name: str = "C") -> list[int]:
    return list(n.state(name).letters.by_seq)


def bury(n: Node, *items: tuple[int, int, bytes], name: str = "C") -> list[int]:
    return list(n.op(BURY, items, name).seqs)


# -- ops


def test_a_table_needs_the_level_of_its_consumers_or_of_what_they_left() -> None:
    n = Node({"retention": "limits"})
    assert n.table.level == 0
    assert isinstance(n.create("keys", max_ack_pending_per_subject=1), int)
    assert n.table.level == ORDER_PER_KEY_LEVEL
    assert isinstance(n.create("letters", **LETTER), int)
    assert n.table.level == DEAD_LETTER_LEVEL
    n.delete("letters")
    assert n.table.level == ORDER_PER_KEY_LEVEL


def test_a_message_that_is_given_up_waits_as_a_letter() -> None:
    n = node()
    assert bury(n, (2, MAX_DELIVER, b""), (3, TERMINATED, b"why"), (9, MAX_DELIVER, b"")) == [2, 3]
    at = n.state().letters.by_seq[2].time
    assert at >= n.now
    assert n.state().letters.by_seq == {2: Letter(MAX_DELIVER, 1, at), 3: Letter(TERMINATED, 1, at, b"why")}
    assert list(n.state().pending) == [1, 4, 5, 6]
    n.ack(1)
    assert n.floors() == (6, 6, 3, 3)
    assert bury(n, (2, MAX_DELIVER, b"")) == []
    assert n.op(BURIED, [2, 9]).seqs == [2] and waiting(n) == [3]
    assert n.op(BURIED, [2]).seqs == []


def test_one_with_deliveries_left_is_not_given_up() -> None:
    n = node(max_deliver=2)
    n.op(turn.REDELIVER, [1])
    assert bury(n, (1, MAX_DELIVER, b""), (2, MAX_DELIVER, b""), (3, TERMINATED, b"")) == [1, 3]
    assert n.state().letters.by_seq[1].deliveries == 2
    assert n.create(action="update", **{**LETTER, "max_deliver": 5}) == 1
    assert bury(n, (1, MAX_DELIVER, b"")) == []


def test_with_policy_all_only_the_termed_message_becomes_a_letter() -> None:
    n = node("workqueue", filter_subject="a")
    assert bury(n, (4, TERMINATED, b"")) == [4]
    n = node("interest", ack_policy="all")
    assert bury(n, (4, TERMINATED, b"")) == [1, 2, 3, 4]
    assert waiting(n) == [4] and list(n.state().pending) == [5, 6]
    assert n.stored() == [4, 5, 6] and n.floors() == (6, 6, 4, 4)


def test_more_than_there_is_room_for_stay_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    from jetcluster.consumer.state import ops

    monkeypatch.setattr(ops, "MAX_LETTERS", 2)
    n = node()
    assert bury(n, *[(seq, TERMINATED, b"") for seq in range(1, 7)]) == [1, 2]
    assert bury(n, (3, TERMINATED, b"")) == [] and 3 in n.state().pending
    n.op(BURIED, [1])
    assert bury(n, (3, TERMINATED, b"")) == [3]


def test_without_dead_letter_they_are_given_up_as_ever() -> None:
    """An update took it away after the owner decided."""
    for retention, left in (("limits", [1, 2, 3]), ("interest", [1, 3]), ("workqueue", [1, 3])):
        n = node(retention, 3, dead_letter=None)
        assert bury(n, (1, MAX_DELIVER, b""), (2, TERMINATED, b"")) == [1, 2]
        assert waiting(n) == [] and n.stored() == left
        assert list(n.state().exhausted.keys) == ([1] if retention == "interest" else [])
    n = node(ack_policy="none", dead_letter=None)
    assert n.op(BURY, [(1, TERMINATED, b"")]) is None


# -- retention


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_the_original_is_kept_until_its_letter_is_confirmed(retention: str) -> None:
    n = node(retention)
    bury(n, (2, MAX_DELIVER, b""), (3, TERMINATED, b""))
    n.ack(1, 4, 5, 6)
    assert n.stored() == [2, 3]
    n.op(BURIED, [3])
    assert n.stored() == [2]
    n.op(BURIED, [2])
    assert n.stored() == []


def test_another_consumer_of_a_stream_with_interest_does_not_take_it_away() -> None:
    n = node("interest", 2)
    n.create("B")
    n.publish(b"a")
    n.deliver(3)
    bury(n, (3, TERMINATED, b""))
    n.deliver(3, name="B")
    n.ack(3, name="B")
    assert n.stored() == [1, 2, 3]
    n.publish(b"a")
    n.deliver(4, name="B")
    n.deliver(4)
    n.op(BURIED, [3])
    bury(n, (4, TERMINATED, b""))
    n.op(BURIED, [4])
    assert n.stored() == [1, 2, 4], "B has yet to ack it"


def test_other_filters_do_not_take_the_original_away() -> None:
    """With `interest`. With a work queue they would give it to another consumer, and are refused."""

    def made() -> Node:
        n = Node({"retention": "interest", "subjects": ["a", "b"]})
        assert isinstance(n.create(**LETTER, filter_subject="a"), int)
        assert isinstance(n.create("B", filter_subject="b"), int)
        n.publish(b"a", b"a", b"b", b"a")
        n.deliver(1, 2)
        bury(n, (1, MAX_DELIVER, b""), (2, TERMINATED, b""))
        assert n.create(action="update", **LETTER, filter_subject="b") == 1
        assert n.stored() == [1, 2, 3] and waiting(n) == [1, 2]
        return n

    n = made()
    n.op(BURIED, [1])
    assert n.stored() == [2, 3]
    n.op(BURIED, [2])
    assert n.stored() == [3]
    n = made()
    n.restart()
    n.delete()
    assert n.stored() == [3], "nobody else wants them"
    n = made()
    assert n.extended(commands.CONSUMER_RESET, {"name": "C", "seq": 1}) == 1
    assert n.stored() == [3] and waiting(n) == []
    n = made()
    assert n.create(action="update", max_deliver=1, filter_subject="b") == 1
    assert n.stored() == [3] and waiting(n) == []


def test_a_work_queue_refuses_other_filters_while_letters_wait() -> None:
    n = Node({"retention": "workqueue", "subjects": ["a", "b"]})
    assert isinstance(n.create(**LETTER, filter_subject="a"), int)
    n.publish(b"a", b"b")
    n.deliver(1)
    bury(n, (1, TERMINATED, b""))
    refused = n.create(action="update", **LETTER, filter_subject="b")
    assert isinstance(refused, ApiError) and "filters can not be updated while dead letters wait" in refused.description
    assert n.create(action="update", **{**LETTER, "max_deliver": 4}, filter_subject="a") == 1
    n.op(BURIED, [1])
    assert n.create(action="update", **LETTER, filter_subject="b") == 1
    n.deliver(2)
    bury(n, (2, TERMINATED, b""))
    assert n.create(action="update", max_deliver=1, filter_subject="a") == 1, "nothing waits any more"


def test_limits_may_take_the_original_and_the_letter_stays() -> None:
    n = node()
    bury(n, (1, TERMINATED, b""))
    n.apply(commands.encode_purge(n.now))
    assert n.stored() == [] and waiting(n) == [1]
    assert n.op(BURIED, [1]).seqs == [1]


def test_taking_dead_letter_away_gives_up_what_waits_without_letters() -> None:
    for retention, left in (("limits", [1, 2, 3]), ("interest", [1, 3]), ("workqueue", [1, 3])):
        n = node(retention, 3)
        bury(n, (1, MAX_DELIVER, b""), (2, TERMINATED, b""))
        assert n.create(action="update", **{**LETTER, "dead_letter": {"subject": "else", "on_term": True}}) == 1
        assert waiting(n) == [1, 2]
        assert n.create(action="update", max_deliver=1) == 1
        assert waiting(n) == [] and n.stored() == left
        n.restart()
        assert waiting(n) == [] and n.stored() == left


def test_a_deleted_consumer_takes_its_letters_along() -> None:
    for retention, left in (("limits", [1, 2]), ("interest", []), ("workqueue", [1, 2])):
        n = node(retention, 2)
        bury(n, (1, MAX_DELIVER, b""))
        n.kv.commit()
        n.delete()
        assert n.stored() == left and not list(n.store.side_scan(SIDE_LETTERS))
    n.create("next")
    assert n.deliver(1, 2, name="next").seqs == [1, 2]


def test_a_reset_forgets_the_letters_of_what_is_delivered_again() -> None:
    n = node()
    bury(n, (2, TERMINATED, b""), (4, TERMINATED, b""))
    assert n.extended(commands.CONSUMER_RESET, {"name": "C", "seq": 3}) == 3
    assert waiting(n) == [2]
    assert n.deliver(3, 4).seqs == [3, 4]
    assert bury(n, (4, TERMINATED, b"")) == [4]


# -- rows, archives, bytes


def test_letters_are_there_after_a_restart_and_in_a_snapshot() -> None:
    n, other = node(), Node()
    bury(n, (5, MAX_DELIVER, b""))
    n.now += 500
    bury(n, (2, TERMINATED, b"\xffwhy" * 60))
    before = dict(n.state().letters.by_seq)
    n.restart()
    assert n.state().letters.by_seq == before and waiting(n) == [5, 2], "in the order in which they were given up"
    other.install(n)
    assert other.state().letters.by_seq == before and other.everything() == n.everything()
    n.op(BURIED, [5])
    n.kv.commit()
    assert [key for key, _ in n.store.side_scan(SIDE_LETTERS)] == [struct.pack(">IQ", 1, 2)]


def test_replicas_whose_letters_differ_have_other_hashes() -> None:
    n, other = node(), node()
    bury(n, (2, TERMINATED, b""))
    bury(other, (2, TERMINATED, b""))
    assert n.machine.hash == other.machine.hash
    del other.state().letters.by_seq[2]
    for each in (n, other):
        each.op(turn.WAIT, b"x")
    assert n.machine.hash != other.machine.hash


def restored(n: Node, state: dict[str, Any], **config: Any) -> Any:
    n.publish(*[b"a"] * 6)
    body = {"name": "C", "config": consumer("C", **config), "action": "create", "created": n.now, "request": ""}
    return n.extended(commands.CONSUMER_CREATE, body | {"owner": "OWNERone", "restored": archived.decode(state)})


def test_letters_are_in_the_archive_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, plain, cut = node(), Node(), Node(), Node()
    bury(before, (5, MAX_DELIVER, b""), (2, TERMINATED, b"why"))
    found = archived.encode(before.state())
    assert found["delivered"] == {"consumer_seq": 6, "stream_seq": 6} and set(found["pending"]) == {"1", "3", "4", "6"}
    assert restored(after, found, **LETTER) == 1
    assert after.state().letters.by_seq == before.state().letters.by_seq
    assert after.state().pending == before.state().pending
    restored(plain, found)
    assert waiting(plain) == []
    monkeypatch.setattr(archived, "MAX_LETTER_TEXT_BYTES", 2)
    restored(cut, found, **LETTER)
    assert [one.text for one in cut.state().letters.by_seq.values()] == [b"", b""]


def test_an_archive_tells_when_a_consumer_whose_letters_wait_was_made() -> None:
    """The ids of its letters have it: a target that has one of them already must know it again."""
    n = node()
    assert archived.created(archived.encode(n.state())) is None
    bury(n, (5, MAX_DELIVER, b""))
    found = archived.encode(n.state())
    assert archived.created(found) == n.state().created > 0
    del found["jetcluster"]["created"]
    assert archived.created(found) is None, "an archive of the version before"
    for odd in ({"created": -1}, {"created": True}, {"created": 1 << 63}, {"created": "5"}, [], 5, {"created": 5}):
        own = {"letters": [1], **odd} if isinstance(odd, dict) and odd != {"created": 5} else odd
        assert archived.created({"jetcluster": own}) is None


@pytest.mark.parametrize("text", [b"\x01" * 64, b"\xff" * 64, "\U0001f600".encode() * 16, b'"' * 256])
def test_texts_are_counted_as_they_are_in_an_archive(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived, "MAX_LETTER_TEXT_BYTES", 1000)
    n = node()
    bury(n, *[(seq, TERMINATED, text) for seq in range(1, 7)])
    found = archived.encode(n.state())
    texts = [row[4] for row in found["jetcluster"]["letters"] if row[4]]
    assert texts and len(dumps(texts)) <= 1000 + 3 * len(texts) + 2
    found["jetcluster"]["letters"] = [[seq, TERMINATED, 1, 5, text.decode("utf-8", "replace")] for seq in range(1, 7)]
    kept = [row[4] for row in archived.decode(found)["letters"]]
    assert kept == texts + [""] * (6 - len(texts)), "the same when it is read"


def test_odd_letters_of_an_archive_do_no_harm() -> None:
    n = Node()
    own: dict[str, Any] = {"delivered": {"consumer_seq": 4, "stream_seq": 4}}
    own |= {"ack_floor": {"consumer_seq": 0, "stream_seq": 0}, "pending": {"1": {"Sequence": 1, "Timestamp": 5}}}
    own["letters"] = [[1, 1, 1, 5, ""], [2, 7, 1, 5, ""], [0, 1, 1, 5, ""], [9, 1, 1, 5, ""], [3, 2, 1 << 40, 5, "x"]]
    assert restored(n, {"jetcluster": own}, **LETTER) == 1
    assert n.state().letters.by_seq == {3: Letter(TERMINATED, archived.MAX_DELIVERIES, 5, b"x")}
    n.restart()
    assert waiting(n) == [3]
    for odd in ([[1, 1]], [[1, 1, 1, 5, 5]], [5], 5, [[-1, 1, 1, 1, ""]]):
        with pytest.raises(ValueError, match=r"state of a consumer|no number|not enough"):
            archived.decode({"jetcluster": {**own, "letters": odd}})


def test_the_bytes_of_the_op() -> None:
    items = [(7, MAX_DELIVER, b""), (1 << 63, TERMINATED, b"why")]
    body = turn.encode(OWNER, 1, 1, [Op(1, 1, BURY, items), Op(1, 1, BURIED, [7, 8])])
    assert turn.is_sound(body) and [op.value for op in turn.decode(body).ops] == [items, [7, 8]]
    for item in (
        struct.pack("<QBH", 1, 3, 0),
        struct.pack("<QBH", 1, 0, 0),
        struct.pack("<QBH", 1, 1, 5) + b"four",
        struct.pack("<QBH", 1, 1, 1),
        struct.pack("<QBH", 1, 1, 257) + b"x" * 257,
        b"short",
    ):
        raw = turn.encode(OWNER, 1, 1, ()) + struct.pack("<IIBI", 1, 1, BURY, len(item)) + item
        assert not turn.is_sound(raw)
        with pytest.raises(CommandError):
            turn.decode(raw)
    assert letters.MAX_TEXT_BYTES == 256
