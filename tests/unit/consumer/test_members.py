"""Members, while they are there, and the slots that they have."""

from __future__ import annotations

from collections import Counter

import pytest

from jetcluster.consumer.owner import members as module
from jetcluster.consumer.owner.members import ADMITTED_AT_ONCE, MAX_MEMBERS, SLOTS, KeyMembers, Member, names_of
from jetcluster.consumer.owner.pull_request import PullRequest

MS = 1_000_000
SECOND = 1000 * MS


class Clients:
    """Members, with their requests and a clock."""

    def __init__(self) -> None:
        self.now = 1_000_000 * SECOND
        self.listening: set[bytes] = set()
        self.members = KeyMembers(self.listening.__contains__)
        self.busy: dict[int, int] = {}
        self.late: set[int] = set()
        """Members for which due messages wait."""
        self.gone: list[int] = []

    def ask(self, reply: bytes) -> tuple[Member, PullRequest]:
        self.listening.add(reply)
        member = self.members.asks(reply, self.now)
        request = PullRequest(reply)
        member.open += 1
        member.joins(request, front=False)
        return member, request

    def end(self, member: Member, request: PullRequest, *, closed: bool = False) -> None:
        member.open -= 1
        member.leaves(request)
        member.seen = self.now
        if closed:
            self.listening.discard(request.reply)

    def wait(self, seconds: float) -> list[int]:
        end = self.now + round(seconds * SECOND)
        moved: list[int] = []
        while self.now < end:
            self.now = min(end, self.now + 100 * MS)
            moved += self.update()
        return moved

    def update(self) -> list[int]:
        moved, gone = self.members.update(self.now, self.busy, self.late.__contains__)
        self.gone += gone
        return moved


def inbox(process: str, number: int = 0) -> bytes:
    return b"_INBOX.%b" % f"{process:x<12}{number:010}".encode()


def shares(members: KeyMembers) -> Counter[int]:
    return Counter(members.slots)


@pytest.mark.parametrize(
    ("reply", "names"),
    [
        (inbox("a", 1), (inbox("a", 1), b"_INBOX.axxxxxxxxxxx")),
        (inbox("a", 1) + b".17", (inbox("a", 1), b"_INBOX.axxxxxxxxxxx")),
        (b"my.box." + inbox("a", 1)[7:], (b"my.box." + inbox("a", 1)[7:], b"my.box.axxxxxxxxxxx")),
        (inbox("a", 1) + b"." + inbox("b")[7:], (inbox("a", 1) + b"." + inbox("b")[7:], b"_INBOX.axxxxxxxxxxx")),
        (b"_R_.1a2b3c.0011223344556677", (b"", b"")),
        (b"in", (b"", b"")),
    ],
)
def test_an_inbox_tells_the_member_and_the_process(reply: bytes, names: tuple[bytes, bytes]) -> None:
    assert names_of(reply) == names


def test_each_inbox_is_a_member_and_a_token_behind_it_is_not() -> None:
    c = Clients()
    a, _ = c.ask(inbox("a", 1))
    assert c.ask(inbox("a", 1))[0] is a and c.ask(inbox("a", 1) + b".2")[0] is a
    second, _ = c.ask(inbox("a", 2))
    assert second is not a and second.ordinal == 1, "two subscriptions of one connection"
    assert c.ask(inbox("b"))[0] not in (a, second)


def test_a_fresh_inbox_goes_on_for_the_one_that_is_closed() -> None:
    c = Clients()
    a, request = c.ask(inbox("a", 1))
    b, other = c.ask(inbox("a", 2))
    c.end(a, request, closed=True)
    assert c.ask(inbox("a", 3))[0] is a
    c.end(b, other, closed=True)
    assert c.ask(inbox("a", 4))[0] is b
    c.listening.add(inbox("a", 9))
    third, request = c.ask(inbox("a", 9))
    c.end(third, request)
    assert c.ask(inbox("a", 10))[0] is not third, "its inbox is open: it will ask again"
    assert len(c.members) == 4


def test_a_fresh_inbox_goes_on_for_a_closed_one_whose_request_has_not_ended_yet() -> None:
    c = Clients()
    first, _ = c.ask(inbox("a", 1))
    second, request = c.ask(inbox("a", 2))
    c.update()
    c.listening.discard(inbox("a", 2))
    assert c.ask(inbox("a", 3))[0] is second and not c.update(), "the client's clock was ahead of ours"
    c.end(second, request)
    assert second.open == 1 and c.wait(3) == [] and len(c.members) == 2
    assert c.ask(inbox("a", 4))[0] not in (first, second), "both listen"


def test_of_many_members_of_a_process_some_are_looked_at_for_a_closed_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_EXAMINED", 3)
    c = Clients()
    asked = [c.ask(inbox("a", number))[0] for number in range(6)]
    c.listening.discard(inbox("a", 3))
    assert c.ask(inbox("a", 7))[0] not in asked, "three were looked at"
    c.ask(inbox("a", 0))
    assert c.ask(inbox("a", 8))[0] is asked[3], "those first that have not asked for longest"


def test_unknown_inboxes_count_as_one() -> None:
    c = Clients()
    assert c.ask(b"in")[0] is c.ask(b"other.box")[0] and len(c.members) == 1


def test_a_member_that_comes_takes_its_share_and_nothing_else_moves() -> None:
    c = Clients()
    first, _ = c.ask(inbox("a"))
    assert len(c.update()) == SLOTS and c.members.sole == first.number and not c.members.several
    for number, process in enumerate("bcdefgh", 2):
        before = list(c.members.slots)
        member, _ = c.ask(inbox(process))
        moved = c.update()
        assert c.members.several and c.members.sole == 0
        assert {c.members.slots[slot] for slot in moved} == {member.number}
        assert all(before[slot] == c.members.slots[slot] for slot in set(range(SLOTS)) - set(moved))
        assert 0.75 * SLOTS / number < len(moved) < 1.25 * SLOTS / number
    assert set(shares(c.members)) == set(c.members.here)


def test_the_share_of_one_that_goes_is_dealt_to_all_and_nothing_else_moves() -> None:
    c = Clients()
    asked = {process: c.ask(inbox(process)) for process in "abcde"}
    c.update()
    c.update()
    before = list(c.members.slots)
    gone, request = asked["c"]
    c.end(gone, request)
    moved = c.wait(1.3)
    assert c.gone == [gone.number] and moved and gone.gone
    assert sorted(moved) == [slot for slot in range(SLOTS) if before[slot] == gone.number]
    assert {c.members.slots[slot] for slot in moved} == {one.number for one, _ in asked.values()} - {gone.number}
    assert all(before[slot] == c.members.slots[slot] for slot in set(range(SLOTS)) - set(moved))


def test_it_has_the_same_slots_when_it_comes_again_and_at_another_owner() -> None:
    c = Clients()
    asked = {process: c.ask(inbox(process, 1)) for process in "abc"}
    c.update()
    of_a = {slot for slot in range(SLOTS) if c.members.slots[slot] == asked["a"][0].number}
    other = Clients()
    again = {process: other.ask(inbox(process, 7)) for process in "cab"}
    other.update()
    assert of_a == {slot for slot in range(SLOTS) if other.members.slots[slot] == again["a"][0].number}
    c.end(*asked["a"], closed=True)
    assert c.wait(0.5) and asked["a"][0].gone
    back, _ = c.ask(inbox("a", 2))
    c.update()
    assert of_a == {slot for slot in range(SLOTS) if c.members.slots[slot] == back.number}


@pytest.mark.parametrize(
    ("closed", "messages", "asked", "there", "gone"),
    [
        (False, 0, 1, 0.9, 1.2),
        (True, 0, 1, 0.1, 0.4),
        (False, 1, 2, 30, None),
        (True, 1, 1, 30, None),
        (True, 1, 2, 0.9, 1.3),
    ],
    ids=["idle", "one-shot", "works", "works with fresh inboxes", "closed while it worked"],
)
def test_who_does_not_ask_is_there_for_a_grace(
    closed: bool, messages: int, asked: int, there: float, gone: float | None
) -> None:
    c = Clients()
    c.ask(inbox("other"))
    for _ in range(asked):
        member, request = c.ask(inbox("a"))
        c.end(member, request)
    c.update()
    c.busy = {member.number: messages} if messages else {}
    if closed:
        c.listening.discard(inbox("a"))
    c.wait(there)
    assert not member.gone
    if gone is not None:
        c.wait(gone - there)
        assert member.gone
    assert c.members.unsettled == (gone is None)


def test_a_sign_of_life_extends_the_grace() -> None:
    c = Clients()
    c.ask(inbox("other"))
    member, request = c.ask(inbox("a"))
    c.end(member, request)
    for _ in range(5):
        c.wait(0.7)
        c.members.heard([member.number, 99], c.now)
        assert not member.gone and not c.members.is_silent(member, c.now)
    assert c.wait(1.2) and member.gone


def test_one_for_which_due_messages_wait_is_gone_when_it_is_silent() -> None:
    c = Clients()
    c.ask(inbox("other"))
    member, request = c.ask(inbox("a"))
    c.end(member, request)
    c.busy, c.late = {member.number: 1}, {member.number}
    c.wait(0.7)
    c.members.heard([member.number], c.now)
    c.wait(0.9)
    assert not member.gone
    c.wait(0.2)
    assert member.gone


def test_the_only_member_stays() -> None:
    c = Clients()
    member, request = c.ask(inbox("a"))
    c.end(member, request)
    c.wait(60)
    assert not member.gone and not c.members.unsettled


def test_many_come_and_go_some_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 20)
    c = Clients()
    asked = [c.ask(inbox(f"p{number}z")) for number in range(30)]
    assert len(c.members) == 21 and len({member.number for member, _ in asked[20:]}) == 1, "the others are one"
    turns = 0
    while len(c.members.here) < 21:
        before = len(c.members.here)
        assert c.update()
        assert len(c.members.here) - before <= ADMITTED_AT_ONCE
        assert c.members.unsettled == (len(c.members.here) < 21)
        turns += 1
    assert turns == 6
    for member, request in asked[:10]:
        c.end(member, request, closed=True)
    c.now += SECOND
    c.update()
    assert len(c.gone) == ADMITTED_AT_ONCE
    c.wait(1)
    assert c.gone == [member.number for member, _ in asked[:10]] and not c.members.unsettled
    assert set(shares(c.members)) == set(c.members.here)


def test_as_many_members_as_may_be_have_alike_shares() -> None:
    c = Clients()
    for number in range(MAX_MEMBERS):
        c.ask(inbox(f"p{number}z"))
    while c.members.unsettled:
        c.update()
    counts = shares(c.members)
    assert len(counts) == MAX_MEMBERS and max(counts.values()) < 3 * SLOTS / MAX_MEMBERS


def test_one_that_goes_before_it_came_moves_nothing() -> None:
    c = Clients()
    c.ask(inbox("a"))
    c.update()
    member, request = c.ask(inbox("b"))
    c.end(member, request)
    before = list(c.members.slots)
    assert c.members.drop(member) == [] and c.members.slots == before and c.update() == []
