from __future__ import annotations

import gc

from jetcluster.consumer.pull_queue import PullQueue
from jetcluster.consumer.pull_request import PullRequest
from jetcluster.consumer.waiting_room import RECOUNT, WaitingRoom


def filled(room: WaitingRoom, count: int) -> PullQueue:
    queue = PullQueue(room)
    for number in range(count):
        queue.add(PullRequest(b"%d" % number))
    return queue


def test_requests_of_all_consumers_are_counted() -> None:
    room = WaitingRoom(5, share=1)
    one, two = filled(room, 3), filled(room, 1)
    assert not room.is_full_for(one, 0)
    two.add(PullRequest(b"x"))
    assert room.is_full_for(one, 0) and one.room is two.room is room
    two.remove(next(iter(two)))
    assert not room.is_full_for(one, 0) and room.count == 4


def test_owners_that_were_let_go_do_not_count() -> None:
    room = WaitingRoom(5, share=1)
    kept, gone = filled(room, 2), filled(room, 3)
    assert room.is_full_for(kept, 0) and len(kept) == 2
    del gone
    gc.collect()
    assert room.is_full_for(kept, RECOUNT - 1), "all queues are gone through once a second"
    assert not room.is_full_for(kept, RECOUNT) and room.count == 2


def test_a_full_room_has_a_share_for_each() -> None:
    room = WaitingRoom(10, share=3)
    hog, victim = filled(room, 10), filled(room, 0)
    assert room.is_full_for(hog, 0)
    for _ in range(3):
        assert not room.is_full_for(victim, 0)
        victim.add(PullRequest(b"v"))
    assert room.is_full_for(victim, 0)
