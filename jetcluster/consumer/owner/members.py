"""`KeyMembers`: the clients that share a pull consumer with order per key, and the keys that each has.

A member is who asks for messages with one inbox, or with fresh inboxes of one process one after the other. It is there
while it asks, while it has messages, and for a grace after that. All is in the owner's memory: a new owner learns the
members anew as they ask.

Keys belong to hash slots, and a slot to the member with the highest score for it (rendezvous hashing): one who comes
takes its share from all others, the share of one who goes is dealt to all, and nothing else moves. Scores depend on
names only, so a new owner gives the same members the same keys.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Final

from jetcluster.consumer.owner.key_stocks import NOBODY
from jetcluster.consumer.owner.pull_request import PullRequest
from jetcluster.consumer.owner.shipment import UNIQUE_CHARS

SLOTS: Final = 4096
MAX_MEMBERS: Final = 256
"""Members with keys of their own; all others together count as one."""
GRACE_NS: Final = 1_000_000_000
"""Time for which a member is there without a request and without messages."""
SHORT_GRACE_NS: Final = 200_000_000
"""The same when its inbox has no interest any more."""
SWEEP_NS: Final = 100_000_000
"""Minimum time between two looks for members that are gone."""
ADMITTED_AT_ONCE: Final = 4
"""Members who come, or go, in one turn: each costs about a millisecond."""
PROCESS_CHARS: Final = 12
"""Length of its beginning, which inboxes of one process have in common."""
MAX_WAITING_EXAMINED: Final = 16
"""Members of a process whose requests wait that are looked at for one that has closed its inbox nevertheless."""
_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15


class Member:
    """One member, and its waiting requests."""

    __slots__ = (
        "asked",
        "family",
        "gone",
        "inbox",
        "line",
        "lost_at",
        "number",
        "open",
        "ordinal",
        "reply",
        "score_seed",
        "seen",
    )  # fmt: skip

    def __init__(self, number: int, inbox: bytes, family: bytes, ordinal: int) -> None:
        self.number = number
        """Never used again for another one."""
        self.inbox = inbox
        """The one that it used last; b"" for all those whose inboxes do not tell them apart."""
        self.reply = inbox
        """The reply subject of its last request, which may be longer."""
        self.asked = 0
        """Number of requests with that inbox."""
        self.family = family
        self.ordinal = ordinal
        """Distinguishes members of one process."""
        self.score_seed = int.from_bytes(blake2b(b"%b/%d" % (family, ordinal), digest_size=8).digest(), "big")
        self.line: OrderedDict[PullRequest, None] = OrderedDict()
        """Requests that may get messages, in the order of their turns."""
        self.open = 0
        """Number of its requests that wait, with those put aside."""
        self.seen = 0
        """Time of its last sign of life, ns."""
        self.lost_at = 0
        """Since when its inbox has had no interest; 0: it has, or nobody looked."""
        self.gone = False

    def joins(self, request: PullRequest, *, front: bool) -> None:
        """Let a request wait in the line, which it may have left before."""
        self.line[request] = None
        self.line.move_to_end(request, last=not front)

    def leaves(self, request: PullRequest) -> None:
        """Take a request out of the line: it ended, or is put aside."""
        self.line.pop(request, None)


class KeyMembers:
    """The members of one consumer. `has_interest`: returns True when somebody listens to an inbox."""

    __slots__ = (
        "_arriving",
        "_by_family",
        "_by_inbox",
        "_by_number",
        "_has_interest",
        "_last_number",
        "_scores",
        "_swept_at",
        "here",
        "lags",
        "slots",
    )

    def __init__(self, has_interest: Callable[[bytes], bool]) -> None:
        self._has_interest = has_interest
        self._by_inbox: dict[bytes, Member] = {}
        self._by_family: dict[bytes, OrderedDict[Member, None]] = {}
        """The members of each process, those first that have not asked for longest."""
        self._by_number: dict[int, Member] = {}
        self._arriving: dict[int, Member] = {}
        """Members without slots as yet."""
        self.here: dict[int, Member] = {}
        """Members with slots, by their numbers."""
        self._last_number = NOBODY
        self.slots = [NOBODY] * SLOTS
        self._scores = [-1] * SLOTS
        """The score of each slot's member."""
        self._swept_at = 0
        self.lags = False
        """True when more come or go than `update` took: it is to be called again at once."""

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def several(self) -> bool:
        """True while each has keys of its own."""
        return len(self.here) > 1

    @property
    def sole(self) -> int:
        """Number of the only member; NOBODY when there are none or several."""
        return next(iter(self.here)) if len(self.here) == 1 else NOBODY

    # -- requests ---------------------------------------------------------------------------------------------------

    def asks(self, reply: bytes, now: int) -> Member:
        """Return the member who asks with this reply subject."""
        member = self._by_inbox.get(reply)
        if member is None:
            inbox, family = names_of(reply)
            member = self._by_inbox.get(inbox) or self._successor(inbox, family) or self._new(inbox, family)
        self._by_family[member.family].move_to_end(member)
        member.asked += 1
        member.reply = reply
        member.seen = now
        member.lost_at = 0
        return member

    def _successor(self, inbox: bytes, family: bytes) -> Member | None:
        """Return the one of a process that goes on with a fresh inbox, as its last one is closed: the first to end."""
        relatives = self._by_family.get(family, ())
        closed = (member for member in relatives if not member.open and not self._listens(member))
        found = min(closed, key=_seen, default=None)
        if found is None:  # a client whose own clock ends a request asks again before we have ended the last one
            waiting = islice((member for member in relatives if member.open), MAX_WAITING_EXAMINED)
            found = next((member for member in waiting if not self._listens(member)), None)
        if found is not None:
            del self._by_inbox[found.inbox]
            self._by_inbox[inbox] = found
            found.inbox = inbox
            found.asked = 0
        return found

    def _new(self, inbox: bytes, family: bytes) -> Member:
        if len(self) >= MAX_MEMBERS:
            inbox = family = b""
            if inbox in self._by_inbox:
                return self._by_inbox[inbox]
        relatives = self._by_family.setdefault(family, OrderedDict())
        taken = {one.ordinal for one in relatives}
        ordinal = next(number for number in range(len(taken) + 1) if number not in taken)
        self._last_number += 1
        member = Member(self._last_number, inbox, family, ordinal)
        relatives[member] = None
        self._by_inbox[inbox] = self._by_number[member.number] = self._arriving[member.number] = member
        return member

    # -- presence ---------------------------------------------------------------------------------------------------

    def _listens(self, member: Member) -> bool:
        return not member.inbox or self._has_interest(member.reply)

    def heard(self, numbers: Iterable[int], now: int) -> None:
        """Note signs of life of members, as acks are."""
        for number in numbers:
            if member := self._by_number.get(number):
                member.seen = now

    def is_silent(self, member: Member, now: int) -> bool:
        """Return True when it neither asks nor gave a sign of life within its grace."""
        return not member.open and now - member.seen >= GRACE_NS

    def update(self, now: int, busy: Mapping[int, int], is_late: Callable[[int], bool]) -> tuple[list[int], list[int]]:
        """Let some members come, and some go that are not there any more; return (slots that moved, numbers of those
        who went). `busy`: member -> number of messages that are out with it; `is_late`: returns True for a member for
        which messages wait whose ack wait is over."""
        moved: list[int] = []
        gone: list[int] = []
        left: list[Member] = []
        if len(self) > 1 and now - self._swept_at >= SWEEP_NS:
            left = [member for member in self._by_number.values() if self._is_gone(member, now, busy, is_late)]
            for member in left[:ADMITTED_AT_ONCE]:
                moved += self.drop(member)
                gone.append(member.number)
            if len(left) <= ADMITTED_AT_ONCE:
                self._swept_at = now
        for number in list(self._arriving)[:ADMITTED_AT_ONCE]:
            moved += self._admit(self._arriving.pop(number))
        self.lags = bool(self._arriving) or len(left) > ADMITTED_AT_ONCE
        return moved, gone

    def _is_gone(self, member: Member, now: int, busy: Collection[int], is_late: Callable[[int], bool]) -> bool:
        if member.open:
            return False
        if self.is_silent(member, now) and is_late(member.number):
            return True
        if self._listens(member):
            member.lost_at = 0
            return member.number not in busy and now - member.seen >= GRACE_NS
        member.lost_at = member.lost_at or now
        if member.number not in busy:
            return now - member.seen >= SHORT_GRACE_NS
        # One that takes a fresh inbox for each request listens to none while it works.
        return member.asked > 1 and now - member.lost_at >= GRACE_NS

    @property
    def unsettled(self) -> bool:
        """True while `update` must be called soon, as members come or may go."""
        return bool(self._arriving) or (len(self) > 1 and any(not member.open for member in self._by_number.values()))

    # -- slots ------------------------------------------------------------------------------------------------------

    def get(self, number: int) -> Member | None:
        """Return a member that is there."""
        return self._by_number.get(number)

    def drop(self, member: Member) -> list[int]:
        """Forget a member that is gone; return the slots that moved."""
        assert not member.open, member.inbox
        member.gone = True
        del self._by_number[member.number], self._by_inbox[member.inbox]
        relatives = self._by_family[member.family]
        del relatives[member]
        if not relatives:
            del self._by_family[member.family]
        if self._arriving.pop(member.number, None):
            return []
        del self.here[member.number]
        slots, scores, others = self.slots, self._scores, list(self.here.values())
        moved = [slot for slot in range(SLOTS) if slots[slot] == member.number]
        for slot in moved:
            slots[slot], scores[slot] = NOBODY, -1
            for other in others:
                score = _score(other.score_seed, slot)
                if score > scores[slot]:
                    slots[slot], scores[slot] = other.number, score
        return moved

    def _admit(self, member: Member) -> list[int]:
        """Give a member its slots; return them."""
        self.here[member.number] = member
        slots, scores, seed = self.slots, self._scores, member.score_seed
        moved = []
        for slot in range(SLOTS):
            score = _score(seed, slot)
            if score > scores[slot]:
                slots[slot], scores[slot] = member.number, score
                moved.append(slot)
        return moved


def names_of(reply: bytes) -> tuple[bytes, bytes]:
    """Return (inbox, family) of a reply subject: its part up to the last unique token, and up to the beginning of the
    first one, which the inboxes of one process share. Both are empty for a subject without such a token."""
    tokens = reply.split(b".")
    unique = [at for at, token in enumerate(tokens) if len(token) == UNIQUE_CHARS and token.isalnum()]
    if not unique:
        return b"", b""
    first, last = unique[0], unique[-1]
    return b".".join(tokens[: last + 1]), b".".join([*tokens[:first], tokens[first][:PROCESS_CHARS]])


def _seen(member: Member) -> int:
    return member.seen


def _mixed(number: int) -> int:
    """Return 64 bits that look random (the finalizer of SplitMix64)."""
    number = (number + 1) * _ODD & _MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


_SLOT_BITS: Final = [_mixed(slot) for slot in range(SLOTS)]


def _score(seed: int, slot: int) -> int:
    number = (seed ^ _SLOT_BITS[slot]) * _ODD & _MASK
    return (number ^ number >> 29) * 0xBF58476D1CE4E5B9 & _MASK
