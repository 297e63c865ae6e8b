from __future__ import annotations

import asyncio
import threading

import pytest

from jetcluster.monitor import stacksz


async def test_threads_and_tasks_are_shown_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    secret = "s3cret"

    def stand_still(word: str) -> None:
        done.wait()

    async def wait_long(word: str) -> None:
        await asyncio.sleep(1000)

    thread = threading.Thread(target=stand_still, args=(secret,), name="stander")
    thread.start()
    tasks = [asyncio.create_task(wait_long(secret), name=f"waiter-{n}") for n in range(3)]
    await asyncio.sleep(0)
    text = stacksz.stacksz()
    assert "thread stander:" in text and "in stand_still" in text
    assert "task waiter-2 (" in text and "wait_long" in text
    assert secret not in text.replace('"s3cret"', "")
    monkeypatch.setattr(stacksz, "MAX_TASKS", 2)
    assert "and 2 more tasks" in stacksz.stacksz(), "the test itself is one"
    done.set()
    thread.join()
    for task in tasks:
        task.cancel()
