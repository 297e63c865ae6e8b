"""Members of a shared consumer, for tests: inboxes that ask, and what each gets."""

from __future__ import annotations

from typing import Any

from jetcluster.consumer.owner import key_order
from jetcluster.consumer.owner.member_dispatch import MemberDispatch
from tests.unit.consumer.rig import SECOND, Frame, Inbox, Rig
from tests.unit.consumer.test_members import inbox

LONG = 600 * SECOND
A, B, C = inbox("a"), inbox("b"), inbox("c")


def sharing(r: Rig) -> MemberDispatch:
    found = r.pull.sharing
    assert found is not None
    return found


def ask(r: Rig, *replies: bytes, batch: int = 100, **fields: Any) -> list[Inbox]:
    return [r.next(reply, batch=batch, **{"expires": LONG, **fields}) for reply in replies]


def keys_of(box: Inbox, r: Rig) -> set[bytes]:
    return {r.node.store.read_columns([seq]).subjects[0] for seq in box.seqs}


def subjects(count: int, *, each: int = 1) -> list[bytes]:
    return [b"s.%d" % (number % count) for number in range(count * each)]


def messages(box: Inbox) -> list[Frame]:
    return [frame for frame in box if frame.reply]


def owned(r: Rig, reply: bytes, count: int = 60) -> list[bytes]:
    """Some subjects whose keys are those of the member with this inbox."""
    member = sharing(r).members.asks(reply, r.now).number
    key_of = key_order.key_reader(r.state.rules.keys)
    slots = sharing(r).members.slots
    names = [b"s.%d" % number for number in range(count)]
    return [name for name in names if slots[key_of(name, b"") >> 52] == member]
