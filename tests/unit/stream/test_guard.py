"""The retention guard in apply: what limits may remove, when publishes are refused, and what is given up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jetcluster.consumer.state import turn
from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.store.slices import Step
from jetcluster.stream.log import commands
from jetcluster.stream.ports import BatchResult, PublishResult, Result
from tests.unit.consumer.replica_rig import SECOND, Node

GUARD = "C"
"""Name of the consumer, the rig's default."""
SIZE = 32
"""Bytes of one of the rig's messages in a stream."""


def guarded(guard: dict[str, Any] | None = None, /, **config: Any) -> Node:
    """A stream whose guard exists and has acknowledged nothing."""
    n = Node(with_guard(guard, **config))
    n.create()
    return n


def with_guard(guard: dict[str, Any] | None = None, /, **config: Any) -> dict[str, Any]:
    return {"retention_guard": {"consumer": GUARD, "max_bytes": 1 << 40, **(guard or {})}, **config}


def archived(n: Node, up_to: int) -> None:
    """Does what an archive job does once it has all messages up to this one."""
    assert n.extended(commands.CONSUMER_RESET, {"name": GUARD, "seq": up_to + 1}) == up_to + 1
    settle(n)


def settle(n: Node) -> None:
    while n.machine.jobs:
        n.apply(commands.encode_continue(n.now))


def expire(n: Node) -> None:
    n.apply(commands.encode_expire(n.now))


def refusals(n: Node, *subjects: bytes) -> list[str]:
    result = n.publish(*subjects)
    assert isinstance(result, PublishResult)
    return [verdict.description for verdict in result.verdicts or () if isinstance(verdict, ApiError)]


# -- each limit


@pytest.mark.parametrize("limits", [{"max_msgs": 2}, {"max_bytes": 80}, {"max_msgs_per_subject": 2}])
def test_limits_remove_a_message_only_once_it_is_acknowledged(limits: dict[str, int]) -> None:
    n = guarded(**limits)
    n.publish(*[b"a"] * 5)
    assert n.stored() == [1, 2, 3, 4, 5]
    archived(n, 1)
    assert n.stored() == [2, 3, 4, 5]
    archived(n, 5)
    assert n.stored() == [4, 5]
    n.publish(b"a")
    assert n.stored() == [5, 6], "4 goes for it"
    n.publish(b"a", b"a")
    assert n.stored() == [6, 7, 8], "6 waits"
    archived(n, 7)
    assert n.stored() == [7, 8]


def test_the_limit_per_subject_removes_of_each_subject_what_is_acknowledged() -> None:
    n = guarded(max_msgs_per_subject=1)
    n.publish(b"a", b"b", b"a", b"b", b"a", b"c")
    archived(n, 3)
    assert n.stored() == [4, 5, 6], "1 and 3 are not the last of a, 2 is not the last of b"
    n.publish(b"c")
    assert n.stored() == [4, 5, 6, 7]


def test_messages_expire_only_once_they_are_acknowledged() -> None:
    n = guarded(max_age=SECOND)
    n.publish(b"a", b"a", b"a")
    n.now += 2 * SECOND
    assert n.machine.next_expiry is None, "no command would remove anything"
    expire(n)
    assert n.stored() == [1, 2, 3]
    archived(n, 2)
    assert n.machine.next_expiry is not None
    expire(n)
    assert n.stored() == [3]
    archived(n, 3)
    expire(n)
    assert n.stored() == []


@pytest.mark.parametrize("never", [False, True])
def test_delete_markers_take_the_place_of_acknowledged_messages_only(never: bool) -> None:
    n = guarded(max_age=SECOND, subject_delete_marker_ttl=SECOND, allow_msg_ttl=True, allow_rollup_hdrs=True)
    if never:
        n.apply(commands.encode_publish(n.now, publish_never()))
    n.publish(b"a", b"b")
    last = n.store.last_seq
    n.now += 2 * SECOND
    expire(n)
    assert n.store.last_seq == last
    archived(n, last - 1)
    expire(n)
    assert n.store.last_seq == last + 1 and n.stored()[-2:] == [last, last + 1]


def publish_never() -> bytes:
    return Batch.encode([b"n"], [b"NATS/1.0\r\nNats-TTL: never\r\n\r\n"], [b""])


def test_an_ordinary_consumer_guards_by_its_acks() -> None:
    n = guarded(max_msgs=1)
    n.publish(*[b"a"] * 4)
    n.deliver(1, 2, 3)
    n.ack(2)
    assert n.stored() == [1, 2, 3, 4]
    n.ack(1)
    assert n.stored() == [3, 4]
    n.op(turn.TERM, [3])
    assert n.stored() == [4]


def test_what_the_consumer_gave_up_counts_as_acknowledged_while_its_letter_waits() -> None:
    """A letter that cannot be published would wait for limits to remove its message, and they for it."""
    n = Node(with_guard(max_msgs=1))
    n.create(max_deliver=1, dead_letter={"subject": "dead", "on_term": True})
    n.publish(*[b"a"] * 4)
    n.deliver(1, 2, 3)
    n.op(turn.BURY, [(1, 1, b""), (2, 2, b"")])
    settle(n)
    assert n.state().letters.by_seq and n.stored() == [3, 4]


def test_what_was_given_up_under_interest_retention_does_not_hold_a_later_guard() -> None:
    n = Node({"retention": "interest"})
    n.create(max_deliver=1)
    n.publish(*[b"a"] * 4)
    n.deliver(1, 2)
    n.op(turn.EXHAUSTED, [1, 2])
    n.configure(with_guard(max_msgs=1))
    settle(n)
    assert n.state().exhausted.keys and n.stored() == [3, 4]


def test_messages_that_wait_for_others_of_their_key_are_held_back() -> None:
    n = guarded(max_msgs=1)
    n.publish(*[b"a"] * 5)
    n.op(turn.DELIVER_SOME, ([1, 4], [2, 3]))
    n.ack(1, 4)
    assert n.stored() == [2, 3, 4, 5]
    n.op(turn.RELEASE, [2, 3])
    n.ack(2)
    assert n.stored() == [3, 4, 5]


@pytest.mark.parametrize("policy", ["all", "none"])
def test_acks_of_all_below_and_deliveries_without_acks_let_messages_go(policy: str) -> None:
    n = Node(with_guard(max_msgs=1))
    n.create(ack_policy=policy)
    n.publish(*[b"a"] * 5)
    if policy == "none":
        n.op(turn.ADVANCE, (3, 3))
    else:
        n.deliver(1, 2, 3, 4)
        n.ack(3)
    assert n.stored() == [4, 5]


def test_without_its_consumer_the_guard_holds_everything() -> None:
    n = Node(with_guard(max_msgs=1))
    n.publish(*[b"a"] * 3)
    assert n.stored() == [1, 2, 3] and n.machine.guard.floor is None
    n.create(deliver_policy="new")
    settle(n)
    assert n.stored() == [3]


def test_the_consumer_cannot_be_deleted_while_it_guards() -> None:
    n = guarded()
    refused = n.delete()
    assert isinstance(refused, ApiError) and "retention_guard" in refused.description
    assert GUARD in n.table.by_name
    n.configure({})
    assert n.delete() == 1


def test_a_reset_back_guards_again_what_is_still_there() -> None:
    n = guarded(max_msgs=2)
    n.publish(*[b"a"] * 4)
    archived(n, 4)
    archived(n, 2)
    n.publish(b"a")
    assert n.stored() == [3, 4, 5]


def test_taking_the_guard_away_lets_the_limits_hold_at_once() -> None:
    n = guarded(max_msgs_per_subject=1, max_msgs=2)
    n.publish(b"a", b"b", b"a", b"c", b"a")
    n.configure({"max_msgs_per_subject": 1, "max_msgs": 2})
    settle(n)
    assert n.stored() == [4, 5]


# -- what somebody asks for wins


def test_purges_deletions_and_rollups_win() -> None:
    n = guarded(max_msgs=1, allow_rollup_hdrs=True)
    n.publish(*[b"a"] * 5, b"b")
    n.apply(commands.encode_purge(n.now, seq=2))
    n.apply(commands.encode_delete_msg(n.now, 3))
    assert n.stored() == [2, 4, 5, 6]
    n.apply(commands.encode_publish(n.now, Batch.encode([b"a"], [b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"], [b""])))
    assert n.stored() == [6, 7]


def test_a_ttl_wins() -> None:
    n = guarded(max_age=60 * SECOND, allow_msg_ttl=True)
    n.publish(b"a")
    n.apply(commands.encode_publish(n.now, Batch.encode([b"a"], [b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n"], [b""])))
    n.now += 2 * SECOND
    expire(n)
    assert n.stored() == [1]


# -- bounds of the guard


def test_publishes_are_refused_beyond_the_bytes_of_the_guard() -> None:
    n = guarded({"max_bytes": 4 * SIZE}, max_bytes=2 * SIZE)
    assert refusals(n, *[b"a"] * 6) == ["maximum bytes exceeded while messages wait for the retention guard"] * 2
    held = n.stored()
    assert len(held) == 4
    archived(n, 2)
    assert refusals(n, b"a") == []
    archived(n, n.store.last_seq)
    assert refusals(n, *[b"a"] * 20)[:1] and n.store.last_seq == 9, "one command can not outgrow it either"


def test_what_was_refused_is_told_until_the_guard_goes_on_or_less_is_stored() -> None:
    n = guarded({"max_bytes": 2 * SIZE + 5})
    n.publish(b"a")
    assert n.machine.guard.refuses_now(n.now) is None
    n.apply(commands.encode_publish(n.now, Batch.encode([b"a"], [], [bytes(20)])))
    assert n.machine.guard.refuses_now(n.now) == "maximum bytes exceeded while messages wait for the retention guard"
    n.publish(b"a")
    assert n.store.messages == 2 and n.machine.guard.refuses_now(n.now) is None
    assert refusals(n, b"a") != []
    assert n.machine.guard.refuses_now(n.now) is not None
    archived(n, 1)
    assert n.machine.guard.refuses_now(n.now) is None


def test_a_stream_whose_messages_are_all_archived_may_have_more_bytes() -> None:
    n = guarded({"max_bytes": 2 * SIZE})
    n.publish(b"a", b"a")
    archived(n, 2)
    assert refusals(n, b"a", b"a") == []
    assert refusals(n, b"a") != []
    archived(n, 3)
    assert refusals(n, b"a") == [], "one waits"


@pytest.mark.parametrize("discard", ["new", "old"])
def test_only_what_waits_counts_for_the_bytes_of_the_guard(discard: str) -> None:
    """A stream without `max_bytes` goes on for ever while the guard follows."""
    n = guarded({"max_bytes": 3 * SIZE, "discard": discard})
    for seq in range(1, 30):
        assert refusals(n, b"a") == []
        if seq == 9:
            n.apply(commands.encode_delete_msg(n.now, 3))
        if seq % 2 == 0:
            archived(n, seq - 1)
            assert n.machine.guard.refuses_now(n.now) is None
    assert len(n.stored()) == 28 and n.machine.guard.overrun.messages == 0


def test_the_bytes_that_wait_are_those_of_the_messages_that_wait() -> None:
    rng = random.Random(5)
    n = Node()
    sizes: dict[int, int] = {}
    for _ in range(40):
        payloads = [bytes(rng.choice([1, 1, 300])) for _ in range(rng.randrange(1, 9))]
        for payload in payloads:
            sizes[n.store.last_seq + len([s for s in sizes if s > n.store.last_seq]) + 1] = SIZE - 1 + len(payload)
        n.now += len(payloads)
        n.apply(commands.encode_publish(n.now, Batch.encode([b"a"] * len(payloads), [], payloads)))
        for seq in rng.sample(sorted(sizes), min(len(sizes), 2)):
            n.apply(commands.encode_delete_msg(n.now, seq))
            del sizes[seq]
        for seq in range(n.store.last_seq + 3):
            assert n.store.bytes_from(seq) == sum(size for other, size in sizes.items() if other >= seq), seq


def test_a_change_of_the_guard_holds_again_what_is_still_there_and_counts_nothing_twice() -> None:
    n = guarded({"max_bytes": 4 * SIZE, "discard": "old"}, max_msgs=100)
    n.publish(*[b"a"] * 10)
    assert n.machine.guard.overrun.to == 8 and n.machine.guard.overrun.messages == 7
    n.configure(with_guard({"max_bytes": 20 * SIZE, "discard": "old"}, max_msgs=5))
    settle(n)
    assert len(n.stored()) == 10 and n.machine.guard.overrun.to == 0
    n.configure(with_guard({"max_bytes": 4 * SIZE, "discard": "old"}, max_msgs=100))
    assert n.machine.guard.overrun.to == 8 and n.machine.guard.overrun.messages == 7, "they are counted already"
    n.publish(*[b"a"] * 2)
    n.restart()
    assert n.machine.guard.overrun.to == 10 and n.machine.guard.overrun.messages == 9


def test_publishes_are_refused_beyond_the_age_of_the_guard() -> None:
    n = guarded({"max_bytes": 0, "max_age": 10 * SECOND}, max_age=SECOND)
    n.publish(b"a")
    n.now += 9 * SECOND
    assert refusals(n, b"a") == []
    n.now += SECOND
    assert refusals(n, b"a") == ["maximum age exceeded of a message that waits for the retention guard"]
    assert n.machine.next_expiry is None
    archived(n, 2)
    assert refusals(n, b"a") == []


def test_an_atomic_batch_is_refused_as_a_whole() -> None:
    n = guarded({"max_bytes": 4 * SIZE}, allow_atomic=True)
    n.publish(b"a")
    for plain in (True, False):
        batch = Batch.encode([b"a"] * 4, [], [b"x"] * 4)
        (command,) = commands.encode_atomic(n.now, batch, plain=plain, allow_msg_id=False)
        result = n.apply(command)
        assert isinstance(result, BatchResult) and result.error is not None and result.error.err_code == 10077
    assert n.stored() == [1]


@pytest.mark.parametrize("per_subject", [False, True])
def test_with_discard_old_the_guard_gives_up_the_oldest_bytes(per_subject: bool) -> None:
    limits = {"max_msgs_per_subject": 1} if per_subject else {"max_msgs": 1}
    n = guarded({"max_bytes": 16 * SIZE, "discard": "old"}, **limits)
    for _ in range(40):
        assert refusals(n, b"a") == []
        settle(n)
        assert len(n.stored()) <= 16
    overrun = n.machine.guard.overrun
    first = n.stored()[0]
    assert overrun.to == first == overrun.messages + 1 > 20
    assert len(n.stored()) >= 14, "it gives up no more than it must"
    archived(n, 40)
    assert n.stored() == [40]


def test_with_discard_old_the_guard_gives_up_what_is_too_old() -> None:
    n = guarded({"max_bytes": 0, "max_age": 10 * SECOND, "discard": "old"}, max_age=SECOND)
    n.publish(b"a")
    n.now += 5 * SECOND
    n.publish(b"a")
    assert n.machine.next_expiry == n.store.first_ts + 10 * SECOND
    n.now += 6 * SECOND
    expire(n)
    assert n.stored() == [2] and n.machine.guard.overrun.messages == 1
    assert refusals(n, b"a") == []


def test_what_is_given_up_stays_as_long_as_no_limit_removes_it() -> None:
    n = guarded({"max_bytes": 4 * SIZE, "discard": "old"}, max_msgs=100)
    n.publish(*[b"a"] * 10)
    assert len(n.stored()) == 10 and n.machine.guard.overrun.messages > 0


def test_a_full_stream_that_discards_new_messages_replaces_no_message_that_waits() -> None:
    n = guarded(max_msgs=2, max_msgs_per_subject=1, discard="new")
    n.publish(b"a", b"b")
    assert refusals(n, b"a") == ["maximum messages exceeded"]
    archived(n, 2)
    assert refusals(n, b"a") == [] and n.stored() == [2, 3]


# -- replicas


def test_the_state_is_the_same_after_a_restart_and_on_a_replica_that_was_given_it() -> None:
    n = guarded({"max_bytes": 400, "discard": "old"}, max_msgs=1)
    n.publish(*[b"a"] * 30)
    settle(n)
    before = n.everything(), n.machine.guard.overrun
    n.restart()
    assert (n.everything(), n.machine.guard.overrun) == before
    other = Node()
    other.install(n)
    assert other.machine.guard.overrun == n.machine.guard.overrun and other.machine.guard.kept_from > 1


class Pair(Node):
    """A replica, and another that restarts at random."""

    def __init__(self, config: dict[str, Any], rng: random.Random) -> None:
        self.other: Node | None = None
        self.rng = rng
        super().__init__(config)
        self.other = Node(config)
        self.short_pieces()

    def short_pieces(self) -> None:
        for one in (self, self.other):
            assert one is not None
            one.store.slices.step = Step(messages=3, looked=5, cut=4, cut_blocks=2, blocks=2, rest=2)

    def apply(self, command: bytes) -> Result:
        result = super().apply(command)
        if self.other is not None:
            self.other.apply(command)
            assert self.other.machine.hash == self.machine.hash
            if self.rng.random() < 0.1:
                self.other.restart()
                self.short_pieces()
        return result


class Expected:
    """The rule in a few lines: the limits hold for what is acknowledged, and nothing else goes."""

    def __init__(self, limits: dict[str, Any]) -> None:
        self.limits = limits
        self.floor = 0
        self.kept: list[tuple[int, int, bytes]] = []

    @property
    def seqs(self) -> list[int]:
        return [seq for seq, _, _ in self.kept]

    def drop(self, seq: int) -> None:
        self.kept = [one for one in self.kept if one[0] != seq]

    def expire(self, now: int) -> None:
        if age := self.limits["max_age"]:
            self.kept = [one for one in self.kept if one[1] > now - age or one[0] > self.floor]

    def limit(self) -> None:
        most, per_subject = self.limits["max_msgs"], self.limits["max_msgs_per_subject"]
        for subject in {subject for _, _, subject in self.kept if per_subject > 0}:
            seqs = [seq for seq, _, other in self.kept if other == subject]
            for seq in seqs[: max(0, len(seqs) - per_subject)]:
                if seq <= self.floor:
                    self.drop(seq)
        while 0 < most < len(self.kept) and self.kept[0][0] <= self.floor:
            del self.kept[0]


@pytest.mark.parametrize("seed", range(40))
def test_a_random_history_ends_as_the_rule_says(seed: int) -> None:
    rng = random.Random(seed)
    limits: dict[str, Any] = {
        "max_msgs": rng.choice([-1, 5]),
        "max_msgs_per_subject": rng.choice([-1, 1, 2, 3]),
        "max_age": rng.choice([0, 4 * SECOND]),
    }
    n, expected = Pair(with_guard(**limits), rng), Expected(limits)
    n.create()
    for _ in range(60):
        n.now += rng.randrange(SECOND)
        act = rng.randrange(10)
        if act < 5:
            chosen = [rng.choice([b"a", b"b", b"c", b"d"]) for _ in range(rng.randrange(1, 5))]
            n.publish(*chosen)
            first = n.store.last_seq - len(chosen) + 1
            expected.kept += [(first + i, n.now + i, subject) for i, subject in enumerate(chosen)]
        elif act < 8:
            expected.floor = rng.randrange(max(expected.floor - 1, 0), n.store.last_seq + 1)
            n.extended(commands.CONSUMER_RESET, {"name": GUARD, "seq": expected.floor + 1})
        elif act == 8:
            left = -1
            while left != (left := n.store.messages):
                expire(n)
            expected.expire(n.now)
        elif n.store.messages:
            seq = rng.choice(n.stored())
            n.apply(commands.encode_delete_msg(n.now, seq))
            expected.drop(seq)
        settle(n)
        expected.limit()
        assert n.stored() == expected.seqs, (seed, limits, expected.floor)
