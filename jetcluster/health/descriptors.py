"""`DescriptorWatch`: are there file descriptors left for the store?

Descriptors are given out lowest number first, so the number of a new one says whether all below are taken: nothing has
to be counted. The reserve at the upper end belongs to the store, the journal and the links between nodes; connections
of clients are refused a little before it.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from typing import Final

SHORTAGE: Final = (errno.EMFILE, errno.ENFILE)
"""This process, or the whole system, has no more descriptors. Others may be given back: what needs one can wait."""

RESERVE_SHARE: Final = 5
MIN_RESERVE: Final = 32
MAX_RESERVE: Final = 512
"""The reserve is this part of the limit, within these bounds."""
RESERVE_MARGIN: Final = 16
"""Between what clients may use and the reserve: a store at work must not touch it at once."""


class DescriptorWatch:
    """`trouble` is a `node_health.Check`."""

    def __init__(self, limit: Callable[[], int] | None = None, lowest_free: Callable[[], int] | None = None) -> None:
        """`lowest_free` raises OSError when there is none."""
        self._limit_now = limit or soft_limit
        self._lowest_free = lowest_free or _lowest_free
        self.limit = self._limit_now()

    @property
    def reserve(self) -> int:
        return min(MAX_RESERVE, max(MIN_RESERVE, self.limit // RESERVE_SHARE))

    def crowded(self, descriptor: int) -> bool:
        """True when a connection with this descriptor is one too many."""
        return descriptor >= self.limit - self.reserve - RESERVE_MARGIN

    def nearly_out(self, descriptor: int) -> bool:
        """True when half of the reserve is taken: links between servers may use the rest, strangers may not."""
        return descriptor >= self.limit - self.reserve // 2

    def trouble(self) -> str:
        """Says when the reserve is touched; "" while it is not."""
        self.limit = self._limit_now()
        try:
            lowest = self._lowest_free()
        except OSError as error:
            if error.errno == errno.ENFILE:
                return "the system has no file descriptors left"
            return f"no file descriptors are left of {self.limit}"
        if lowest < self.limit - self.reserve:
            return ""
        return f"{lowest} of {self.limit} file descriptors are in use"


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> tuple[int, int]:
    """Raises this process's soft limit of descriptors to the hard one; returns both limits as they were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # the kernel has a limit below an "unlimited" one
            return soft, soft
    return soft, hard


def _lowest_free() -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(descriptor)
    return descriptor
