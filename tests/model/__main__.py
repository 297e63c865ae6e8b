"""python -m tests.model [--server nats-server] [--size 3] [--seeds 100] [--first 1] [--steps 60] [--still]

Plays histories against servers of its own, and prints where they differ from the model, with a short history for each.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from testkit.harness import ProcessCluster
from tests.model.bucket_history import BucketWriter
from tests.model.consumer_history import ConsumerWriter
from tests.model.history import Writer
from tests.model.player import Differs
from tests.model.processes import LENIENT, Wire, explained, play, rules_of


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="jetcluster")
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--still", action="store_true", help="nothing that takes time: no waits, no limits of a second")
    parser.add_argument("--consumers", action="store_true", help="histories of consumers")
    parser.add_argument("--buckets", action="store_true", help="histories of Key/Value buckets and object stores")
    wanted = parser.parse_args()
    writer = ConsumerWriter if wanted.consumers else BucketWriter if wanted.buckets else Writer
    rules = rules_of(wanted.server, wanted.size)
    config = LENIENT if wanted.server == "nats-server" else ""
    asked = found = disturbed = 0
    began = time.monotonic()
    async with (
        ProcessCluster(wanted.size, wanted.server, config=config) as cluster,
        await cluster[0].connect() as client,
    ):
        wire = Wire(client)
        for seed in range(wanted.first, wanted.first + wanted.seeds):
            history = writer(seed, timed=not wanted.still, replicas=wanted.size).history(wanted.steps)
            try:
                player = await play(wire, rules, history)
            except Differs as error:
                found += 1
                print(f"seed {seed}: {await explained(wire, rules, history, error)}", flush=True)
            else:
                asked += player.asked
                disturbed += player.disturbed
    seconds = time.monotonic() - began
    print(f"{asked} requests, {found} differences, {disturbed} histories disturbed, {seconds:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
