"""What the connections of a server use of it."""

from __future__ import annotations

import asyncio

from testkit.server_rig import Bench


def test_no_number_is_given_twice() -> None:
    parts = Bench().server.parts
    assert [parts.new_cid() for _ in range(3)] == [1, 2, 3]


async def test_work_that_is_under_way_is_known_until_it_is_done() -> None:
    parts, go_on = Bench().server.parts, asyncio.Event()

    async def work() -> None:
        await go_on.wait()

    parts.spawn(work())
    assert len(parts.tasks) == 1
    go_on.set()
    await asyncio.gather(*parts.tasks)
    await asyncio.sleep(0)
    assert not parts.tasks


def test_at_first_there_is_nobody_to_look_anything_up() -> None:
    assert Bench().server.parts.look_up(PermissionError()) is None
