"""The harness itself."""

from __future__ import annotations

import socket
import subprocess
import sys

from testkit.harness import BLOCK, TOP, busy_ports, free_ports


def test_no_port_is_given_out_twice() -> None:
    """Neither by this process, soon, nor by another one."""
    code = f"from testkit.harness import free_ports; print(*free_ports({BLOCK // 4}))"
    mine = free_ports(BLOCK // 4)
    more = free_ports(BLOCK // 4)
    others = [
        subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert len({*mine, *more}) == BLOCK // 2
    for theirs in others:
        assert len(theirs) == BLOCK // 4
        assert not {*mine, *more} & set(map(int, theirs))


def test_what_is_in_use_is_left_out_and_more_is_claimed_when_a_block_is_used_up() -> None:
    with socket.socket() as one:
        (port,) = free_ports(1)
        one.bind(("127.0.0.1", port))
        one.listen()
        assert busy_ports([port]) == [port]
        found = free_ports(BLOCK + 10)
        assert port not in found and len(set(found)) == BLOCK + 10
