"""The patience of who asks: nothing is begun for the asker of a request that does not wait for its answer any more.

A client that was told 503 (10008) counts on it that what it asked for is not done much later. So a request carries how
long its asker waits, wherever it goes, and whoever is to propose something looks at that once more right before
(docs/architecture.md, "Requests that change something").
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final
from weakref import WeakKeyDictionary

from jetcluster.clock import Clock
from jetcluster.raft.api import RaftError

MARGIN: Final = 0.5
"""Seconds that must be left when something is proposed: its outcome is to be known in time as well."""
_ends: WeakKeyDictionary[asyncio.Task[Any], float] = WeakKeyDictionary()
"""By task, and not in its context: what a request sets off (timers, background work) outlives it."""


class GivenUpError(RaftError):
    """Nobody waits for the answer any more; nothing was begun."""


def wait_until(end: float) -> None:
    """The task at hand works for somebody who waits until `end` (monotonic seconds)."""
    task = asyncio.current_task()
    assert task is not None
    _ends[task] = end


def asked_until() -> float:
    """Monotonic seconds until which somebody waits for the task at hand; `math.inf` where nobody said so."""
    task = asyncio.current_task()
    return math.inf if task is None else _ends.get(task, math.inf)


def check_wanted(clock: Clock) -> None:
    """To be called right before something is proposed. Raises GivenUpError."""
    if clock.monotonic() > asked_until() - MARGIN:
        raise GivenUpError("its asker does not wait any more")


def left_for(clock: Clock, seconds: float) -> float:
    """At most `seconds`, and not so long that the asker would get no answer; 0 when that is so already."""
    return max(0.0, min(seconds, asked_until() - MARGIN / 2 - clock.monotonic()))
