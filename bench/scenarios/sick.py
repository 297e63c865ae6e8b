"""Measures faults that are no crashes: how long a publisher goes without acks while the leader's disk is sick.

    python -m bench sick [--seconds 40] [--rounds 3] [--fault NAME ...]

Three nodes, one stream with three replicas. A publisher on another node than the leader's sends a message, waits for
its ack, and so on. Then the leader's journal hangs, its data store answers errors, or the file system below its data
store hangs (`testkit/shim.c`), for `--seconds`; meanwhile 40 MB go to another stream, so that data is flushed.
Prints one line of JSON per round: seconds from the fault until another node led, the longest time between two acks,
and how many acked messages some replica does not have in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from testkit import shim
from testkit.client import Client, create_stream
from testkit.harness import HarnessError, ProcessCluster
from testkit.ledger import Ledger, load, read_all, wait_direct

DISK = "data disk hangs"
FAULTS = ("journal.write=hang", "store.write=eio", "store.flush=eio", "store.read=eio", DISK)


async def bulk(client: Client) -> None:
    big = b"." * (512 << 10)
    await asyncio.gather(*(client.request("waste", big, within=30.0) for _ in range(80)), return_exceptions=True)


async def missing(cluster: ProcessCluster, ledger: Ledger) -> int:
    """Acked messages that a replica does not hold, summed over the replicas."""
    last = (await cluster.wait_current("S"))["state"]["last_seq"]
    lost = 0
    for node in cluster.nodes:
        async with await node.connect() as client:
            await wait_direct(client, "S", last)
            stored = await read_all(client, "S")
            lost += sum(stored.get(seq) != payload for payload, seq in ledger.acked.items())
    return lost


async def measure(fault: str, seconds: float, folder: Path) -> dict[str, Any]:
    cluster = ProcessCluster(3, root=folder / "cluster")
    files = {node.name: folder / f"fault-{node.name}" for node in cluster.nodes}
    library = shim.build(folder) if fault == DISK else None
    for node in cluster.nodes:
        if library is None:
            node.env["JETCLUSTER_FAULTS"] = f"{fault}@{files[node.name]}"
        else:
            hangs = {"CHAOS_HANG": str(files[node.name]), "CHAOS_HANG_IN": str(node.store / "jetstream" / "data")}
            node.env |= {"LD_PRELOAD": str(library), **hangs}
    async with cluster, await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        await create_stream(client, "WASTE", ["waste"], 3)
        leader = await cluster.stream_leader("S")
        other = next(node for node in cluster.nodes if node is not leader)
        async with load(cluster) as ledger, await other.connect() as near:
            start = time.monotonic()
            files[leader.name].touch()
            filling = asyncio.create_task(bulk(near))
            moved: float | None = None
            while time.monotonic() < start + seconds:
                with contextlib.suppress(HarnessError, TimeoutError):
                    if moved is None and await cluster.stream_leader("S", ask=other) is not leader:
                        moved = round(time.monotonic() - start, 2)
                await asyncio.sleep(0.1)
            files[leader.name].unlink()
            await filling
            await asyncio.sleep(5)
        return {
            "fault": fault, "seconds": seconds, "another_leads_after": moved, "acked": len(ledger.acked),
            "longest_without_ack": round(ledger.longest_gap(), 2), "missing": await missing(cluster, ledger),
        }  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fault", choices=FAULTS, action="append")


def main(arguments: argparse.Namespace) -> None:
    for _ in range(arguments.rounds):
        for fault in arguments.fault or FAULTS:
            with tempfile.TemporaryDirectory(prefix="jetcluster-sick-") as folder:
                print(json.dumps(asyncio.run(measure(fault, arguments.seconds, Path(folder)))), flush=True)
