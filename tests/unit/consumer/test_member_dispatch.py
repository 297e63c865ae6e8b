"""Keys stay with their members: a consumer that several clients share, by hand."""

from __future__ import annotations

import pytest

from jetcluster.consumer.owner import key_order
from jetcluster.consumer.state.turn import DELIVER, REDELIVER
from jetcluster.stream.log import commands
from tests.unit.consumer.key_rig import ONE, rig, update
from tests.unit.consumer.members_rig import A, B, C, ask, keys_of, messages, owned, sharing, subjects
from tests.unit.consumer.rig import SECOND, Inbox, Rig
from tests.unit.consumer.test_members import inbox


def test_each_key_comes_to_one_member_and_all_have_some() -> None:
    r = rig()
    boxes = ask(r, A, B, C)
    for _ in range(4):
        r.publish(*subjects(60))
        for box in boxes:
            for frame in messages(box)[-30:]:
                r.ack(frame)
    found = [keys_of(box, r) for box in boxes]
    assert all(found) and sum(map(len, found)) == 60 == len(set().union(*found))
    assert sorted(seq for box in boxes for seq in box.seqs) == list(range(1, 241))
    assert r.owner.key_sharing.members == 3 and not r.state.pending


def test_a_busy_member_holds_only_its_keys() -> None:
    r = rig()
    (a,), (b,) = ask(r, A, batch=1), ask(r, B)
    r.publish(*subjects(60))
    assert len(a.seqs) == 1 and len(b.seqs) > 10
    parked = 60 - len(a.seqs) - len(b.seqs)
    assert r.state.unacked.held == parked > 10
    assert not r.unserved or not r.unserved[-1]
    assert r.owner.withheld() == "keys"
    first = list(b.seqs)
    r.publish(*subjects(60))
    for frame in messages(b):
        r.ack(frame)
    assert {seq - 60 for seq in b.seqs if seq > 60} == set(first), "its own keys go on"
    r.ack(a[0])
    ask(r, A)
    assert a.seqs == sorted(a.seqs) and len(a.seqs) == parked + 2
    for _ in range(2):
        for frame in messages(a):
            r.ack(frame)
    assert len(a.seqs) + len(b.seqs) == 120


def test_a_redelivery_goes_to_its_member_and_waits_for_it() -> None:
    r = rig(ack_wait=30 * SECOND)
    (a,), (b,) = ask(r, A, batch=1), ask(r, B)
    r.publish(*subjects(60))
    r.ack(a[0], b"-NAK")
    assert len(a.seqs) == 1 and a.seqs[0] not in b.seqs
    r.advance(0.5)
    r.publish(b"more")
    assert a.seqs[0] not in b.seqs, "another member may not have it"
    ask(r, A, batch=1)
    assert a.seqs == [a.seqs[0]] * 2 and REDELIVER in r.kinds()


def test_a_nak_with_nothing_else_to_do_comes_back_to_the_member() -> None:
    r = rig()
    a, b = ask(r, A, B)
    r.publish(*subjects(20))
    for frame in messages(a)[:3]:
        r.ack(frame, b"-NAK")
    assert a.seqs[-3:] == a.seqs[:3] and not set(a.seqs) & set(b.seqs)


def test_the_keys_of_one_that_is_gone_move_and_no_others() -> None:
    r = rig(ack_wait=30 * SECOND)
    a, b, c = ask(r, A, B, C)
    r.publish(*subjects(60))
    before = {reply: set(owned(r, reply)) for reply in (A, B, C)}
    for frame in [*messages(a), *messages(b), *messages(c)]:
        r.ack(frame)
    del r.bus.inboxes[C]
    r.publish(*subjects(60))
    r.advance(0.6)
    found = {name: {*keys_of(box, r)} for name, box in ((A, a), (B, b))}
    assert found[A] >= before[A] and found[B] >= before[B]
    assert found[A] | found[B] == set(subjects(60)) and not found[A] & found[B], "each at one of the others"
    assert r.owner.key_sharing.members == 2


def test_one_that_died_with_messages_in_hand_loses_its_keys_but_they_wait_for_its_messages() -> None:
    r = rig(ack_wait=30 * SECOND)
    a, b = ask(r, A, B, batch=1000)
    ask(r, B)
    r.publish(*subjects(40))
    lost = set(b.seqs)
    del r.bus.inboxes[B]
    for frame in messages(a):
        r.ack(frame)
    r.publish(*subjects(40))
    r.advance(7)
    assert r.owner.key_sharing.members == 1, "nobody listens to its inbox"
    assert lost and not {seq - 40 for seq in a.seqs} & lost, "what is out of these keys is not settled"
    r.publish(b"s.new", *subjects(40))
    assert 81 in a.seqs
    for frame in messages(a):
        r.ack(frame)
    r.advance(24)
    assert lost <= set(a.seqs)
    for _ in range(3):
        for frame in messages(a):
            r.ack(frame)
    assert set(a.seqs) == set(range(1, 122)) and not r.state.pending


def test_one_that_let_its_ack_wait_end_and_does_not_ask_is_gone_at_once() -> None:
    r = rig(ack_wait=5 * SECOND)
    (a,), (b,) = ask(r, A), ask(r, B, batch=1)
    r.publish(*subjects(40))
    assert len(b.seqs) == 1 and r.owner.key_sharing.members == 2
    r.advance(4.9)
    assert r.owner.key_sharing.members == 2, "it works on"
    parked = r.state.unacked.held
    r.advance(0.2)
    assert r.owner.key_sharing.members == 1 and b.seqs[0] in a.seqs and parked and not r.state.unacked.held


def test_one_that_works_on_others_keeps_its_keys_when_an_ack_wait_ends() -> None:
    r = rig(ack_wait=5 * SECOND)
    (a,), (b,) = ask(r, A), ask(r, B, batch=3)
    r.publish(*subjects(40))
    r.advance(4.5)
    r.ack(b[1])
    r.advance(0.6)
    assert r.owner.key_sharing.members == 2 and b.seqs[0] not in a.seqs
    ask(r, B, batch=1)
    assert b.seqs.count(b.seqs[0]) == 2


@pytest.mark.parametrize("acked", [False, True])
def test_a_due_message_does_not_wait_for_one_that_falls_silent(acked: bool) -> None:
    r = rig(ack_wait=5 * SECOND)
    (a,), (b,) = ask(r, A), ask(r, B, batch=3)
    r.publish(*subjects(40))
    r.advance(4.5)
    r.ack(b[1])
    r.advance(0.6)
    assert b.seqs[0] not in a.seqs, "it was heard of"
    if acked:
        r.ack(b[0])
    r.ack(b[2])
    r.advance(1.3)
    assert r.owner.key_sharing.members == 1 and (b.seqs[0] in a.seqs) == (not acked)
    assert not r.owner.selection.redelivery.queued


def test_a_member_that_comes_takes_only_its_share() -> None:
    r = rig()
    a, b = ask(r, A, B)
    r.publish(*subjects(60))
    before = keys_of(a, r), keys_of(b, r)
    (c,) = ask(r, C)
    for box in (a, b):
        for frame in messages(box):
            r.ack(frame)
    r.publish(*subjects(60))
    share = keys_of(c, r)
    assert 5 < len(share) < 40
    assert {r.node.store.read_columns([seq]).subjects[0] for seq in a.seqs if seq > 60} == before[0] - share
    assert {r.node.store.read_columns([seq]).subjects[0] for seq in b.seqs if seq > 60} == before[1] - share


def test_what_waits_goes_with_its_key_to_a_member_that_comes() -> None:
    r = rig()
    (a,), _ = ask(r, A, batch=1), ask(r, B)
    r.publish(*subjects(60))
    (c,) = ask(r, C)
    assert c.seqs and a.seqs[0] not in c.seqs, "what A has not got"
    mine = owned(r, C)
    assert keys_of(c, r) <= set(mine)


@pytest.mark.parametrize("limit", [2, 3])
def test_with_more_of_a_key_out_no_two_have_it(limit: int) -> None:
    r = rig(max_ack_pending_per_subject=limit)
    a, b = ask(r, A, B)
    r.publish(*subjects(40, each=2))
    assert len(a.seqs) + len(b.seqs) == 80
    (c,) = ask(r, C)
    share = set(owned(r, C, 40))
    r.publish(*subjects(40, each=2))
    assert share and not c.seqs, "others have messages of its keys"
    seen: dict[bytes, bytes] = {}
    names = dict(enumerate(subjects(40, each=2) * 2, 1))
    done: set[tuple[bytes, int]] = set()
    for _ in range(6):
        out: dict[bytes, set[bytes]] = {}
        for reply, box in ((A, a), (B, b), (C, c)):
            for frame in messages(box):
                if (reply, frame.seq) not in done:
                    out.setdefault(names[frame.seq], set()).add(reply)
        assert all(len(holders) == 1 for holders in out.values()), out
        for reply, box in ((A, a), (B, b), (C, c)):
            for frame in messages(box):
                if (reply, frame.seq) not in done:
                    done.add((reply, frame.seq))
                    seen[names[frame.seq]] = reply
                    r.ack(frame)
                    break
    for _ in range(80):
        for reply, box in ((A, a), (B, b), (C, c)):
            for frame in messages(box):
                if (reply, frame.seq) not in done:
                    done.add((reply, frame.seq))
                    r.ack(frame)
    assert sorted(seq for _, seq in done) == list(range(1, 161)) and not r.state.pending
    assert keys_of(c, r) <= share


def test_after_a_failover_the_same_members_get_the_same_keys() -> None:
    r = rig()
    ask(r, A, B)
    before = owned(r, A), owned(r, B)
    r.crash()
    for box in r.bus.inboxes.values():
        box.clear()
    b, a = ask(r, B, A)
    assert (owned(r, A), owned(r, B)) == before
    r.publish(*subjects(60))
    assert (keys_of(a, r), keys_of(b, r)) == (set(before[0]), set(before[1]))


def test_after_a_failover_nothing_more_of_a_key_goes_out_until_what_is_out_is_settled() -> None:
    r = rig(max_ack_pending_per_subject=2)
    a, b = ask(r, A, B)
    r.publish(*subjects(10))
    frames = messages(a) + messages(b)
    r.crash()
    ask(r, B, A)
    r.publish(*subjects(10))
    assert len(a.seqs) + len(b.seqs) == 10, "who has the others is not known"
    for frame in frames:
        r.ack(frame)
    assert len(a.seqs) + len(b.seqs) == 20


def test_fresh_inboxes_of_one_process_keep_its_keys() -> None:
    r = rig()
    ask(r, B)
    names: list[set[bytes]] = []
    for number in range(4):
        (box,) = ask(r, inbox("a", number), batch=100, expires=SECOND // 2)
        r.publish(*subjects(40))
        names.append(keys_of(box, r))
        for frame in messages(box) + messages(r.bus.inboxes[B])[-40:]:
            r.ack(frame)
        r.advance(0.51)
        del r.bus.inboxes[inbox("a", number)]
        r.advance(0.1)
    assert names[0] and names == [names[0]] * 4 and r.owner.key_sharing.members == 2


def test_one_shots_hold_no_keys() -> None:
    r = rig()
    (a,) = ask(r, A, batch=1000)
    for number in range(5):
        (box,) = ask(r, inbox(f"shot{number}"), batch=1, expires=SECOND)
        r.publish(*subjects(40))
        for frame in messages(box) + messages(a):
            r.ack(frame)
        del r.bus.inboxes[inbox(f"shot{number}")]
    r.advance(0.7)
    assert r.owner.key_sharing.members == 1
    for _ in range(5):
        for frame in messages(a):
            r.ack(frame)
    assert not r.state.pending


def test_no_wait_ends_when_nothing_is_there_for_this_member() -> None:
    r = rig()
    ask(r, A, batch=1)
    ask(r, B, batch=1)
    r.publish(*subjects(40))
    box = r.bus.listen(B)
    box.clear()
    found = r.next(B, batch=100, no_wait=True)
    count = len(found.seqs)
    assert count and found.statuses == [b"404 No Messages"]
    found.clear()
    assert r.next(B, batch=5, no_wait=True).statuses == [b"404 No Messages"]
    assert r.state.unacked.held == 40 - 2 - count, "what waits for A stays"


def test_no_wait_is_not_refused_for_requests_of_others() -> None:
    r = rig()
    (a,), _ = ask(r, A, batch=1), ask(r, B, batch=1000)
    r.publish(*subjects(40))
    a.clear()
    assert len(r.next(A, batch=3, no_wait=True).seqs) == 3


def test_near_the_bound_whoever_asks_gets_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "MAX_WAITING_MESSAGES", 20)
    r = rig()
    (a,), (b,) = ask(r, A, batch=1), ask(r, B, batch=1000)
    r.publish(*subjects(100))
    assert r.state.unacked.held < 15 and len(a.seqs) + len(b.seqs) > 85
    assert sharing(r).spilled > 10
    r.publish(*subjects(100))
    assert r.state.unacked.held == 20, "what waits for its key may take the rest"


def test_messages_without_a_key_go_to_whoever_asks() -> None:
    r = rig(key="header:None")
    a, b = ask(r, A, B)
    r.publish(*subjects(40))
    assert sorted(a.seqs + b.seqs) == list(range(1, 41)) and len(a.seqs) == len(b.seqs)
    r.ack(a[0], b"-NAK")
    assert len(a.seqs) + len(b.seqs) == 41


def test_requests_with_max_bytes_are_served_too() -> None:
    r = rig()
    a, b = ask(r, A, B, max_bytes=500)
    r.publish(*subjects(40))
    assert len(a.seqs) + len(b.seqs) < 40 and a.seqs and b.seqs
    assert any(b"409" in text for box in (a, b) for text in box.statuses)
    parked = r.state.unacked.held
    ask(r, A, B)
    assert parked and len(a.seqs) + len(b.seqs) == 40 and not r.state.unacked.held


def test_a_client_that_does_not_read_holds_its_keys_and_gets_them_later() -> None:
    r = rig()
    r.bus.unread[A] = 1 << 30
    a, b = ask(r, A, B)
    r.publish(*subjects(40))
    assert not a.seqs and 0 < len(b.seqs) < 40
    r.bus.unread[A] = 0
    r.advance(0.1)
    assert len(a.seqs) + len(b.seqs) == 40


def test_lost_ops_give_requests_their_places_back() -> None:
    r = rig()
    a, b = ask(r, A, B)
    r.hold = True
    r.publish(*subjects(40))
    r.lose()
    r.release()
    assert sorted(a.seqs + b.seqs) == list(range(1, 41))
    assert r.pull.queue.wanted == 200 - 40


def test_what_is_lost_after_its_member_went_comes_to_the_one_that_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig()
    (a,), (b,) = ask(r, A, batch=3), ask(r, B)
    r.hold = True
    r.publish(*subjects(40))
    member = sharing(r).members.asks(A, r.now)
    assert not member.open
    sharing(r).members.drop(member)
    r.lose()
    r.release()
    assert len(a.seqs) == 3 and len(a.seqs) + len(b.seqs) < 40 and r.owner.key_sharing.members == 2
    ask(r, A)
    assert len(a.seqs) + len(b.seqs) == 40


def test_many_ready_messages_are_put_in_place_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.consumer.owner.pull_dispatch.KEYS_PER_STEP", 7)
    r = rig(max_ack_pending=1000)
    (a,) = ask(r, A, batch=50)
    r.publish(*subjects(50, each=3))
    for frame in messages(a):
        r.ack(frame)
    ask(r, B)
    assert r.owner.key_sharing.members == 2
    ask(r, A)
    b = r.bus.inboxes[B]
    for _ in range(3):
        for frame in messages(a) + messages(b):
            r.ack(frame)
    assert sorted(a.seqs + b.seqs) == list(range(1, 151)) and not r.state.pending
    assert b.seqs


def test_what_waits_for_one_that_goes_comes_to_the_only_one_left() -> None:
    r = rig()
    (a,), (b,) = ask(r, A), ask(r, B, batch=1)
    r.publish(*subjects(40))
    r.ack(b[0])
    del r.bus.inboxes[B]
    assert r.state.unacked.held
    r.advance(0.6)
    assert r.owner.key_sharing.members == 1 and r.state.unacked.held == 0
    assert sorted([*a.seqs, *b.seqs]) == list(range(1, 41))
    r.ack(a[0])
    r.publish(*subjects(40))
    assert len(a.seqs) + len(b.seqs) == 40 + 2


def test_the_order_can_be_switched_on_and_off_while_members_ask() -> None:
    r = Rig()
    a, b = ask(r, A, B)
    r.publish(*subjects(10))
    update(r, **ONE)
    assert r.owner.key_sharing.members == 2
    for frame in messages(a) + messages(b):
        r.ack(frame)
    first = len(a.seqs)
    r.publish(*subjects(40))
    found = keys_of(Inbox(a[first:]), r), {r.node.store.read_columns([s]).subjects[0] for s in b.seqs if s > 10}
    assert all(found) and not found[0] & found[1]
    update(r, max_ack_pending_per_subject=0)
    for frame in messages(a) + messages(b):
        r.ack(frame)
    r.publish(*subjects(40))
    assert len(a.seqs) + len(b.seqs) == 90


def test_a_removal_while_a_message_waits_for_its_member() -> None:
    r = rig()
    (a,), (b,) = ask(r, A, batch=1), ask(r, B)
    r.publish(*subjects(40))
    gone = [seq for seq in range(1, 41) if seq not in a.seqs + b.seqs]
    for seq in gone[:3]:
        r.node.apply(commands.encode_delete_msg(r.now, seq))
    r.owner.freed(gone[:3])
    r.ack(a[0])
    ask(r, A)
    assert sorted(a.seqs + b.seqs) == sorted(set(range(1, 41)) - set(gone[:3]))


def test_one_member_alone_has_plain_deliveries_in_the_log() -> None:
    r = rig()
    (a,) = ask(r, A)
    r.publish(*subjects(10))
    assert (DELIVER, list(range(1, 11))) in r.log and r.state.unacked.held == 0
    assert r.owner.key_sharing.members == 1
    r.ack(a[0], b"-NAK")
    assert a.seqs[-1] == 1


def test_a_new_reading_of_the_keys_knows_who_has_what() -> None:
    r = rig(max_ack_pending_per_subject=2)
    a, b = ask(r, A, B)
    r.publish(*subjects(40))
    r.owner.selection.renew_keys()
    r.woken = True
    r.settle()
    r.publish(*subjects(40))
    assert len(a.seqs) + len(b.seqs) == 80, "each is with the member of its key"


def test_due_messages_go_to_their_members_after_ops_were_lost() -> None:
    r = rig(max_ack_pending_per_subject=2, ack_wait=SECOND)
    a, b = ask(r, A, B, batch=400)
    r.publish(*subjects(40))
    share = keys_of(a, r), keys_of(b, r)
    r.hold = True
    r.advance(1.1)
    r.lose()
    r.release()
    assert len(a.seqs) + len(b.seqs) == 80 and (keys_of(a, r), keys_of(b, r)) == share
    r.publish(*subjects(40))
    assert len(a.seqs) + len(b.seqs) == 120 and (keys_of(a, r), keys_of(b, r)) == share


def test_a_redelivery_before_the_keys_are_read_is_known_after_it() -> None:
    r = rig(max_ack_pending_per_subject=2, ack_wait=10 * SECOND)
    a, b = ask(r, A, B, batch=400)
    r.publish(*subjects(40))
    of_b = keys_of(b, r)
    b.clear()
    r.owner.may_order_by_key = lambda: False
    r.owner.selection.renew_keys()
    r.advance(10.1)
    moved = keys_of(a, r) & of_b
    assert moved, "a server is too old: whoever asks gets them"
    again = keys_of(b, r)
    b.clear()
    r.owner.may_order_by_key = lambda: True
    r.advance(2.0)
    r.publish(*subjects(40))
    assert keys_of(b, r) <= of_b & again, "what another one has of a key is not settled yet"
    for frame in messages(a):
        r.ack(frame)
    assert keys_of(b, r) == of_b


def test_what_was_given_back_makes_nobody_busy_after_a_new_reading_of_the_keys() -> None:
    r = rig(ack_wait=600 * SECOND)
    a, b = ask(r, A, B)
    r.publish(*subjects(40))
    for frame in messages(a):
        r.ack(frame, b'-NAK {"delay": 300000000000}')
    for frame in messages(b):
        r.ack(frame)
    r.owner.selection.renew_keys()
    r.woken = True
    r.settle()
    assert r.owner.selection.keys is not None and not r.owner.selection.keys.queues.busy


def test_who_has_what_is_not_known_once_another_owner_was_there() -> None:
    r = rig(max_ack_pending_per_subject=2)
    a, b = ask(r, A, B)
    r.publish(*subjects(10))
    r.state.epoch += 1
    r.lose()
    r.settle()
    r.publish(*subjects(10))
    assert len(a.seqs) + len(b.seqs) == 10
    for frame in messages(a) + messages(b):
        r.ack(frame)
    assert len(a.seqs) + len(b.seqs) == 20
