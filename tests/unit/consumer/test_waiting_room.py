from __future__ import annotations

import gc

from jetcluster.consumer.pull_queue import PullQueue
from jetcluster.consumer.pull_request import PullRequest
from jetcluster.consumer.waiting_room import WaitingRoom


def filled(room: WaitingRoom, count: int) -> PullQueue:
    queue = PullQueue(room)
    for number in range(count):
        queue.add(PullRequest(b"%d" % number))
    return queue


def test_requests_of_all_consumers_are_counted() -> None:
    room = WaitingRoom(5)
    one, two = filled(room, 3), filled(room, 1)
    assert not room.is_full
    two.add(PullRequest(b"x"))
    assert room.is_full and one.room is two.room is room
    two.remove(next(iter(two)))
    assert not room.is_full and room.count == 4


def test_owners_that_were_let_go_do_not_count() -> None:
    room = WaitingRoom(5)
    kept, gone = filled(room, 2), filled(room, 3)
    assert room.is_full and len(kept) == 2
    del gone
    gc.collect()
    assert not room.is_full and room.count == 2
