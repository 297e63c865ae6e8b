"""Background tasks: kept until they end, stopped together, their errors told."""

from __future__ import annotations

import asyncio
from typing import Any

from jetcluster.replica.background import Background


class Lines(list[str]):
    def error(self, event: str, **values: Any) -> None:
        self.append(f"{event}: {values['error']}")


async def fail() -> None:
    raise ValueError("x")


async def test_a_task_is_kept_until_it_ends() -> None:
    lines = Lines()
    background = Background(lines)  # type: ignore[arg-type]
    done = asyncio.Event()

    async def wait() -> None:
        await done.wait()

    task = background.spawn(wait())
    assert list(background.tasks) == [task]
    done.set()
    await task
    await asyncio.sleep(0)
    assert not background.tasks and lines == []


async def test_what_a_task_raises_is_told() -> None:
    lines = Lines()
    background = Background(lines)  # type: ignore[arg-type]
    task = background.spawn(fail())
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert lines == ["a background task failed: ValueError('x')"] and not background.tasks


async def test_a_stop_ends_all() -> None:
    lines = Lines()
    background = Background(lines)  # type: ignore[arg-type]
    tasks = [background.spawn(asyncio.sleep(1000)) for _ in range(3)]
    await background.stop()
    assert all(task.cancelled() for task in tasks) and lines == [] and not background.tasks
