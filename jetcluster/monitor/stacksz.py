"""/stacksz: the stacks of all threads and tasks of this process, for a server that hangs or is slow; nats-server shows
its goroutines there. It names functions and lines only: it shows no values, so no secrets."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from types import CoroutineType

MAX_TASKS = 1000


def stacksz() -> str:
    """Returns the text. Called on the event loop, whose own thread it shows, too."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sorted(sys._current_frames().items())
    ]
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:MAX_TASKS]:
        where = [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}\n'
            for frame in task.get_stack()
        ]
        parts.append(f"task {task.get_name()} ({_coroutine(task)}):\n" + "".join(where))
    if len(tasks) > MAX_TASKS:
        parts.append(f"and {len(tasks) - MAX_TASKS} more tasks\n")
    return "\n".join(parts)


def _coroutine(task: asyncio.Task[object]) -> str:
    coroutine = task.get_coro()
    return coroutine.__qualname__ if isinstance(coroutine, CoroutineType) else "?"
