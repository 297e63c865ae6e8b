"""`DescriptorWatch`: watches whether file descriptors are left for the store.

The kernel allocates the lowest free number, so a new descriptor shows without counting that all below are taken. The
upper end is reserved for the store, the journal and links between nodes; client connections are refused before it.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from typing import Final

SHORTAGE: Final = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or a system, without free descriptors. The caller can wait for one to be released."""

RESERVE_DIVISOR: Final = 5
MIN_RESERVE: Final = 32
MAX_RESERVE: Final = 512
"""Reserved descriptors: a fifth of the limit, within these bounds."""
RESERVE_MARGIN: Final = 16
"""Descriptors between the clients' part and the reserve, so that a busy store does not touch it at once."""


class DescriptorWatch:
    """`trouble` is a `node_health.Check`."""

    def __init__(self, limit: Callable[[], int] | None = None, lowest_free: Callable[[], int] | None = None) -> None:
        """`lowest_free` returns the number of a new descriptor, and raises OSError when none is free."""
        self._limit_now = limit or soft_limit
        self._lowest_free = lowest_free or _lowest_free
        self.limit = self._limit_now()

    @property
    def reserve(self) -> int:
        return min(MAX_RESERVE, max(MIN_RESERVE, self.limit // RESERVE_DIVISOR))

    def crowded(self, descriptor: int) -> bool:
        """True when a client connection with this descriptor must be refused."""
        return descriptor >= self.limit - self.reserve - RESERVE_MARGIN

    def nearly_out(self, descriptor: int) -> bool:
        """True when half of the reserve is taken: the rest is for links between servers alone."""
        return descriptor >= self.limit - self.reserve // 2

    def used(self) -> int:
        """Return how many descriptors are in use, as the lowest free one shows it; `limit` when none is free."""
        try:
            return self._lowest_free()
        except OSError:
            return self.limit

    def trouble(self) -> str:
        """Return a reason once the reserve is touched, "" before."""
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
    """Raise the soft limit of descriptors to the hard one; return the previous soft limit and the limit in force."""
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
