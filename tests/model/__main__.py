"""python -m tests.model [--of exam-acks] [--server nats-server] [--size 3] [--seeds 100] [--first 1] [--steps 60]
[--still]

Plays histories against servers of its own, and prints where they differ from the model, with a short history for each.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from testkit.harness import ProcessCluster
from tests.model.ack_history import AckWriter
from tests.model.bucket_history import BucketWriter
from tests.model.consumer_history import ConsumerWriter
from tests.model.deliver_history import DeliverWriter
from tests.model.history import Writer
from tests.model.player import Differs
from tests.model.processes import LENIENT, Wire, explained, play, rules_of
from tests.model.read_history import ReadWriter
from tests.model.stream_history import StreamWriter

WRITERS: dict[str, type[Writer]] = {
    "streams": Writer, "consumers": ConsumerWriter, "buckets": BucketWriter, "exam-acks": AckWriter,
    "exam-deliver": DeliverWriter, "exam-reads": ReadWriter, "exam-streams": StreamWriter,
}  # fmt: skip


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="jetcluster")
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--still", action="store_true", help="nothing that takes time: no waits, no limits of a second")
    parser.add_argument("--of", choices=sorted(WRITERS), default="streams", help="what the histories are about")
    wanted = parser.parse_args()
    writer = WRITERS[wanted.of]
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
