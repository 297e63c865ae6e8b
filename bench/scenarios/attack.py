"""Measures what a client notices of attacks on its server.

    python -m bench attack [--seconds 5] [--only KIND[,KIND]] [--together] [--json FILE]

One node with ports for clients, leaf nodes, WebSocket and monitoring. Each kind of `testkit/attacks.py` is run
for so many seconds from a process of its own, one after the other, then (`--together`) all at once; meanwhile another
client sends a PING every 5 ms and takes the time to its PONG. Prints for each kind the latencies at p50, p99, p99.9 and
the longest, the processor time of the server, and its peak resident memory so far; then one line of JSON.

`worked` is the processor time, in units of 10 ms, that the server's loop itself took while a PING waited: at most that
long it was kept by something else.

The goal is 100 ms at p99.9, one kind after the other, on a machine with nothing else to do; all at once the attackers'
processes take what the machine has, and the figure says more of it than of the server.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from testkit.attacked import attacked, measure
from testkit.attacks import KINDS

GOAL = 0.1
"""Seconds, at p99.9."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--json", type=Path)


def main(given: argparse.Namespace) -> int:
    kinds = given.only.split(",") if given.only else list(KINDS)
    results: dict[str, Any] = {}
    with attacked() as (server, probe):
        rounds: list[tuple[str, list[str]]] = [("nothing", [])] + [(kind, [kind]) for kind in kinds]
        if given.together:
            rounds.append(("together", kinds))
        print(
            f"{'kind':22} {'pings':>6} {'p50':>7} {'p99':>7} {'p99.9':>7} {'max ms':>8} "
            f"{'worked':>7} {'cpu s':>6} {'peak MiB':>8}"
        )
        for name, some in rounds:
            if not some:
                time.sleep(given.seconds)
            found = results[name] = measure(server, probe, some, given.seconds)
            print(
                f"{name:22} {found['pings']:6} {found['p50']:7} {found['p99']:7} {found['p99.9']:7} {found['max']:8} "
                f"{found['worked_max']:7} {found['cpu']:6} {found['peak_mib']:8}",
                flush=True,
            )
            for line in found["said"]:
                print("   ", line)
            if not server.alive:
                print(server.log_path.read_text()[-3000:])
                return 1
    line = json.dumps(results)
    print(line)
    if given.json:
        given.json.write_text(line)
    worst = max(found["p99.9"] for name, found in results.items() if name != "together")
    return int(worst > GOAL * 1000)
