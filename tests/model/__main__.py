"""    python -m tests.model --server nats-server --seeds 100 [--first 1] [--steps 60] [--size 1] [--all]

Plays histories against a server and prints where it differs from the model, with the history made short. `--all` goes
on after a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from testkit.harness import ProcessCluster
from tests.model.history import Step, Writer
from tests.model.player import Differs, Disturbed, Player, shrink
from tests.model.processes import Wire, without_streams
from tests.model.rules import OURS, PEERS, Rules


async def play(wire: Wire, rules: Rules, history: Sequence[Step]) -> int:
    """Requests that were asked. Raises Differs; a disturbed history ends early."""
    await without_streams(wire.client)
    player = Player(wire, rules)
    try:
        await player.play(history)
    except Disturbed:
        pass
    return player.asked


async def differs(wire: Wire, rules: Rules, history: Sequence[Step]) -> str:
    try:
        await play(wire, rules, history)
    except Differs as error:
        return str(error)
    return ""


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="jetcluster")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--still", action="store_true", help="without waits")
    parser.add_argument("--all", action="store_true")
    wanted = parser.parse_args()
    rules = OURS if wanted.server == "jetcluster" else PEERS[wanted.size]
    asked, began, found = 0, time.monotonic(), 0
    async with ProcessCluster(wanted.size, wanted.server) as cluster, await cluster[0].connect() as client:
        wire = Wire(client)
        for seed in range(wanted.first, wanted.first + wanted.seeds):
            history = Writer(seed, timed=not wanted.still, replicas=wanted.size).history(wanted.steps)
            try:
                asked += await play(wire, rules, history)
            except Differs as error:
                found += 1
                short = await shrink(history[: error.at + 1], lambda one: _fails(wire, rules, one), 80)
                print(f"seed {seed}: " + await differs(wire, rules, short) or str(error))
                print("".join(f"    {step}\n" for step in short), flush=True)
                if not wanted.all:
                    break
    print(f"{asked} requests, {found} differences, {time.monotonic() - began:.1f} s")


async def _fails(wire: Wire, rules: Rules, history: Sequence[Step]) -> bool:
    return bool(await differs(wire, rules, history))


if __name__ == "__main__":
    asyncio.run(main())
