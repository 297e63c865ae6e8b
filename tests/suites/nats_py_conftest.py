"""pytest's side of nats-py's suite: each xdist worker has a network namespace of its own, as the ports are fixed.

`tests/suites/run.py` copies this file beside the tests as conftest.py; `python conftest.py` tells whether that works.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
import unittest.mock  # noqa: F401 - a test of theirs uses it without importing it, and fails when it runs alone
from typing import Any

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 1


def enter_namespace() -> None:
    """Moves the calling thread, and what it starts from now on, into a new network with nothing but loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def pytest_configure(config: Any) -> None:
    if hasattr(config, "workerinput"):
        enter_namespace()


if __name__ == "__main__":
    try:
        enter_namespace()
    except OSError as error:
        sys.exit(str(error))
