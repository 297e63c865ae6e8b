"""`jetcluster.arrow`: messages per second of `read_stream` from a three-node cluster, beside what the same servers give
a client that only counts bytes, all in one run and in turns. CPU-seconds are those of the servers, and of a process
of its own that reads.

    python -m bench arrow [--rounds 3] [--messages 1000000] [--size 128] [--profile FILE] [--out FILE]

Servers and reader share one machine: the sum of their CPU is what a machine with enough cores would have to give; the
wall rate is what this one gave. `--profile` records the reader by py-spy, with compiled loops: its stacks, and where
they end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench import loads
from bench.spent import CpuTree, Sample, own_rate, table
from jetcluster.client.servers import ServerOptions, ask
from testkit.harness import TOP, ProcessCluster

STREAM = "ARROW"
READS: dict[str, dict[str, object]] = {
    "read_stream, 1 connection": {"connections": 1},
    "read_stream, 3 connections": {"connections": 3},
    "read_stream, 3 connections, seq and data": {"connections": 3, "columns": ["seq", "data"]},
}
PURE = "read_stream, 3 connections, Python alone"
CODE = """
import json, sys, time
from jetcluster.arrow import read_stream

urls, stream, count, given = json.loads(sys.argv[1])
read_stream(urls, stream, start=1, end=2, **given).read_all()
rows, last, started, spent = 0, 0, time.perf_counter(), time.process_time()
for batch in read_stream(urls, stream, **given):
    seqs = batch.column("seq")
    assert seqs[0].as_py() == last + 1, (last, seqs[0])
    rows, last = rows + batch.num_rows, seqs[-1].as_py()
assert rows == last == count, (rows, last, count)
print(json.dumps([time.perf_counter() - started, time.process_time() - spent]))
"""
REPEATED = """
import json, sys
from jetcluster.arrow import read_stream

urls, stream, given = json.loads(sys.argv[1])
read_stream(urls, stream, **given).read_all()
print("warm", flush=True)
for _ in sys.stdin:
    for batch in read_stream(urls, stream, **given):
        pass
"""
PROFILED = 10
"""Reads of the whole stream under the profiler."""
WAITS = ("poll (libc", "Condition.wait", "pthread_cond_timedwait")
"""For an answer, for another thread, for the interpreter's lock."""
SHOWN = 16
"""Functions of the profile that are named."""


def read(
    urls: Sequence[str], given: dict[str, object], count: int, pids: Sequence[int], *, pure: bool = False
) -> Sample:
    """Reads the stream in a process of its own."""
    servers = CpuTree(*pids)
    words = [sys.executable, "-c", CODE, json.dumps([list(urls), STREAM, count, given])]
    env = os.environ | {"PYTHONPATH": str(TOP)} | ({"JETCLUSTER_PURE": "1"} if pure else {})
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)  # noqa: S603 - this Python
    if done.returncode:
        raise RuntimeError(f"the reader failed: {done.stderr[-2000:]}")
    took, spent = json.loads(done.stdout)
    return Sample(count / took, servers.spent() / count * 1e6, spent / count * 1e6)


def profile(urls: Sequence[str], out: Path) -> str:
    """Reads `PROFILED` times under py-spy, which comes when the modules are there; needs the right to trace processes.

    Writes the stacks to `out`, one a line with its number of samples; returns a table of where they ended.
    """
    words = [sys.executable, "-c", REPEATED, json.dumps([list(urls), STREAM, READS["read_stream, 3 connections"]])]
    env = os.environ | {"PYTHONPATH": str(TOP)}
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:  # noqa: S603 - this Python
        assert reader.stdin is not None and reader.stdout is not None
        reader.stdout.readline()
        spy = [str(Path(sys.executable).with_name("py-spy")), "record", "--native", "--threads", "--rate", "200"]
        spy += ["--format", "raw", "-o", str(out), "--pid", str(reader.pid)]
        with subprocess.Popen(spy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as watching:  # noqa: S603 - of this environment
            time.sleep(2.0)  # it reads the symbols of all libraries first
            for line in ["go\n"] * PROFILED:
                reader.stdin.write(line)
            reader.stdin.close()
            reader.wait()
            watching.wait()
    return ends_of(out.read_text().splitlines())


def ends_of(stacks: Sequence[str]) -> str:
    """Returns Markdown: the functions in which most samples ended, with their shares.

    Of the threads while they read and do not wait for the servers or for each other; an address without a name counts
    for its caller.
    """
    ends: Counter[str] = Counter()
    for line in stacks:
        stack, _, samples = line.rpartition(" ")
        if "jetcluster/" in stack and not any(name in stack for name in WAITS):
            named = [frame for frame in stack.split(";") if not frame.startswith("0x")]
            ends[re.sub(r"\.cpython-[^)]*|:\d+(?=\))", "", named[-1])] += int(samples)
    total = sum(ends.values())
    rows = [f"| {name} | {samples / total:.0%} |" for name, samples in ends.most_common(SHOWN)]
    return "\n".join(["| samples of the reader end in | share |", "|---|---|", *rows]) + "\n"


async def measure(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, list[Sample]], str]:
    """Samples by name, and where those of the profiler ended."""
    samples: dict[str, list[Sample]] = {}
    count = arguments.messages
    async with ProcessCluster(3, root=folder / "cluster") as cluster:
        config = {"name": STREAM, "subjects": ["arrow"], "num_replicas": 3, "allow_direct": True}
        servers = ServerOptions(tuple(cluster.urls))
        await asyncio.to_thread(ask, servers, lambda connection: connection.api(f"STREAM.CREATE.{STREAM}", config))
        leader = await cluster.stream_leader(STREAM)
        await loads.js_publish(leader.url, "arrow", size=arguments.size, window=500, count=count)
        await cluster.wait_current(STREAM)
        pids = [node.pid for node in cluster.nodes]
        await asyncio.to_thread(read, cluster.urls, {}, count, pids)  # warm
        for at in range(arguments.rounds):
            for connections in (1, 3):
                own = await own_rate(cluster, STREAM, count, connections, arguments.seconds)
                name = f"Direct Get, {connections} connection{'s'[: connections - 1]}, bytes counted"
                samples.setdefault(name, []).append(own)
            for name in READS if at % 2 == 0 else reversed(READS):
                found = await asyncio.to_thread(read, cluster.urls, READS[name], count, pids)
                samples.setdefault(name, []).append(found)
            found = await asyncio.to_thread(read, cluster.urls, {"connections": 3}, count, pids, pure=True)
            samples.setdefault(PURE, []).append(found)
        shares = await asyncio.to_thread(profile, cluster.urls, arguments.profile) if arguments.profile else ""
    return samples, shares


def page(samples: dict[str, list[Sample]], shares: str, arguments: argparse.Namespace, load: float) -> str:
    """Markdown."""
    return (
        f"{arguments.messages:,} messages of {arguments.size} bytes, R3, {time.strftime('%Y-%m-%d')}; median of "
        f"{arguments.rounds}; load average at the start {load:.1f} on {os.cpu_count()} cores.\n\n"
        f"{table(samples, 'reader')}\n{shares}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of a payload")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load that counts bytes")
    parser.add_argument("--profile", type=Path, help="file for the stacks of the reader")
    parser.add_argument("--out", type=Path, help="Markdown page to write")


def main(arguments: argparse.Namespace) -> None:
    load, base = os.getloadavg()[0], TOP / ".bench"
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="arrow-", dir=base) as folder:
        text = page(*asyncio.run(measure(arguments, Path(folder))), arguments, load)
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
