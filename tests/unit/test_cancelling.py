"""Tasks are ended and waited for (jetcluster/cancelling.py)."""

from __future__ import annotations

import asyncio

from jetcluster.cancelling import cancelled


async def test_it_waits_until_all_have_ended_whatever_they_raise() -> None:
    ended: list[str] = []

    async def work(name: str, error: bool) -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            await asyncio.sleep(0.01)
            ended.append(name)
            if error:
                raise ValueError(name)

    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["message"]))
    tasks = [asyncio.ensure_future(work(name, name == "b")) for name in "abc"]
    await asyncio.sleep(0)
    await cancelled(tasks)
    assert ended == ["a", "b", "c"]
    del tasks
    assert told == []


async def test_what_has_ended_takes_no_turn_of_the_loop() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_result(1)
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    await cancelled([done])
    await cancelled([])
    assert turns == []
