"""Memory that a part holds, measured from outside: for the bounds of its tables and caches."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType)
"""Things of the program, not of its data."""


def held(root: object, *others: object) -> int:
    """Number of objects that are reachable from `root`, itself included, on a way that leads over none of `others`."""
    seen = {id(one) for one in (root, *others)}
    left = [root]
    while left:
        for found in gc.get_referents(left.pop()):
            if id(found) not in seen and not isinstance(found, _SHARED):
                seen.add(id(found))
                left.append(found)
    return len(seen) - len(others)


def kept_bytes(work: Callable[[], object]) -> int:
    """Bytes that `work` allocates and that are not freed when it has returned."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
