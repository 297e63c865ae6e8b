"""Measures what streams cost a node in which nothing happens: CPU of the server process.

    python -m scripts.bench_idle_streams [0 600 1800]

Creates so many R1 streams, waits until all is quiet, and prints the share of one core that the process takes in 20 s
in which nothing happens, and in 10 s with some 45 requests (STREAM.NAMES) per second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from testkit.client import Client, create_stream
from testkit.harness import ProcessCluster

SETTLE, QUIET, ASKED = 8.0, 20.0, 10.0
AT_ONCE = 20


def cpu(pid: int) -> float:
    """Seconds of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def share(pid: int, client: Client, seconds: float, *, ask: bool) -> float:
    """Per cent of a core."""
    before, start = cpu(pid), time.monotonic()
    while time.monotonic() - start < seconds:
        if ask:
            await client.api("STREAM.NAMES", {"offset": 0, "subject": "nothing"}, within=30)
        await asyncio.sleep(0.02 if ask else 1.0)
    return 100 * (cpu(pid) - before) / (time.monotonic() - start)


async def main(counts: list[int]) -> None:
    async with ProcessCluster(1) as cluster, await cluster[0].connect() as client:
        pid, made = cluster[0].pid, 0
        for count in counts:
            for first in range(made, count, AT_ONCE):
                some = range(first, min(first + AT_ONCE, count))
                await asyncio.gather(*(create_stream(client, f"S{number}", [f"s{number}"], 1) for number in some))
            made = count
            await asyncio.sleep(SETTLE)
            quiet = await share(pid, client, QUIET, ask=False)
            asked = await share(pid, client, ASKED, ask=True)
            print(f"{count} streams: {quiet:.1f} % of a core, with requests {asked:.1f} %", flush=True)


if __name__ == "__main__":
    asyncio.run(main([int(count) for count in sys.argv[1:]] or [0, 600, 1800]))
