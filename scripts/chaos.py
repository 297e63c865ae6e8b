"""`make chaos`: a bounded loop of kill -9, SIGSTOP and whole-cluster kills under load, with exact accounting.

    python -m scripts.chaos [--seconds 60] [--seed N] [--server nats-server]

Three local nodes, one R3 stream, a publisher that re-sends what is not acked (same Nats-Msg-Id). At the end every
acked message must be on every node, once, under the sequence of its ack. The seed is printed and replays the choices.
The larger nemeses (toxiproxy, docker) belong to the chaos issue; this is the part that needs only this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter

from jetcluster.cli.bench_client import ClientError
from tests.cluster.client import Ledger, check_exactly_once, create_stream, read_all, steady_publisher, wait_direct
from tests.cluster.harness import HarnessError, ProcessCluster, eventually, find_server


class Nemesis:
    """One fault at a time, healed before the next."""

    def __init__(self, cluster: ProcessCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.done: Counter[str] = Counter()

    async def strike(self) -> None:
        fault = self.rng.choice([self.kill_leader, self.kill_one, self.kill_two, self.kill_all, self.freeze])
        self.done[fault.__name__] += 1
        await fault()

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))

    async def kill_leader(self) -> None:
        leader = await self.cluster.stream_leader("CHAOS", within=30)
        leader.kill9()
        await self.pause()
        await leader.start()

    async def kill_one(self) -> None:
        node = self.rng.choice(self.cluster.nodes)
        node.kill9()
        await self.pause()
        await node.start()

    async def kill_two(self) -> None:
        """No quorum for a while: nothing may be acked then."""
        nodes = self.rng.sample(self.cluster.nodes, 2)
        for node in nodes:
            node.kill9()
        await self.pause()
        for node in nodes:
            await node.start()

    async def kill_all(self) -> None:
        self.cluster.kill9_all()
        await asyncio.gather(*(node.start() for node in self.cluster.nodes))

    async def freeze(self) -> None:
        node = self.rng.choice(self.cluster.nodes)
        node.signal(signal.SIGSTOP)
        await self.pause()
        await self.pause()
        node.signal(signal.SIGCONT)


async def chaos(seconds: float, seed: int, server: str) -> None:
    rng = random.Random(seed)
    config = "jetstream { sync_interval: always }\n" if server == "nats-server" else ""
    async with ProcessCluster(3, server, config=config) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "CHAOS", ["chaos"], 3)
        ledger, stop = Ledger(), asyncio.Event()
        load = asyncio.create_task(steady_publisher(cluster.urls, "chaos", ledger, stop))
        nemesis = Nemesis(cluster, rng)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await nemesis.strike()
            goal = len(ledger.acked) + 200
            healed = await eventually(lambda goal=goal: reached(ledger, goal), 60, "no acks after the fault is healed")
            print(f"{len(ledger.acked):>9,} acked; {dict(nemesis.done)}; acks again {healed:.2f} s after healing")
        stop.set()
        await asyncio.wait_for(load, 60)
        await cluster.wait_current("CHAOS", within=60)
        for node in cluster.nodes:
            async with await node.connect() as client:
                await wait_direct(client, "CHAOS", max(ledger.acked.values()))
                check_exactly_once(ledger, await read_all(client, "CHAOS"))
        print(f"OK: {len(ledger.acked):,} acked messages, each on all three nodes exactly once; faults: "
              f"{dict(nemesis.done)}; longest time without an ack {ledger.longest_gap():.1f} s")  # fmt: skip


async def reached(ledger: Ledger, goal: int) -> bool:
    return len(ledger.acked) >= goal


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options.add_argument("--server", default="jetcluster", choices=["jetcluster", "nats-server"])
    args = options.parse_args()
    if find_server(args.server) is None:
        print(f"chaos: {args.server} is not on this machine (make tools)")
        return 1
    print(f"chaos: seed {args.seed}")
    try:
        asyncio.run(chaos(args.seconds, args.seed, args.server))
    except (AssertionError, HarnessError, ClientError, OSError, TimeoutError) as error:
        print(f"chaos FAILED with seed {args.seed}: {error or type(error).__name__}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
