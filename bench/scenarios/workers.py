"""Throughput and processor time per message of one worker and of two.

    python -m bench workers [--rounds 5] [--load publish|core]

Two publishers with 500 messages of 128 bytes in flight each, to a stream with one replica each; and two pairs of a
publisher and a subscriber without a stream. A connection is `own` where its worker leads its stream (or has the other
end of the pair), and `crossed` where the other worker does. The processor time of the busier worker bounds what a
machine with a core for each can do; the time on the clock also has the clients, on the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

PAYLOAD = b"x" * 128
IN_FLIGHT = 500
AT_ONCE = 100
"""Messages per write."""
MESSAGES = {"publish": 60_000, "core": 400_000}
"""Messages per connection."""


class Figures(NamedTuple):
    """One run: processor microseconds per message, of the busier worker, of all workers; messages per second."""

    busier: float
    all: float
    rate: float


class Server:
    """A server with `workers` processes in a temporary folder."""

    def __init__(self, workers: int, folder: str) -> None:
        config = Path(folder) / "server.conf"
        config.write_text(
            f'server_name: m\nlisten: "127.0.0.1:-1"\nworkers: {workers}\nports_file_dir: "{folder}"\n'
            f'jetstream {{ store_dir: "{folder}/store" }}\n'
        )
        command = [sys.executable, "-m", "jetcluster", "serve", "-c", str(config), "-l", f"{folder}/log"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: S603 - our own program
        ports = Path(folder) / f"nats-server_{self.process.pid}.ports"
        while not ports.exists():
            time.sleep(0.01)
        self.port = int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.pids = [int(pid) for pid in children] or [self.process.pid]

    def used(self) -> list[int]:
        """Returns the processor nanoseconds of each worker."""
        return [
            sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
            for pid in self.pids
        ]

    def connect(self, name: str = "") -> tuple[socket.socket, str]:
        """Connects to the worker `name`, or any; returns the socket and the worker's name."""
        while True:
            one = socket.create_connection(("127.0.0.1", self.port))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            info = json.loads(_line(one).removeprefix(b"INFO "))
            if name in ("", info["server_name"]):
                one.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
                assert _line(one) == b"PONG"
                return one, info["server_name"]
            one.close()

    def create(self, name: str) -> str:
        """Creates a stream with the subject of its name, and returns the name of its leader."""
        one, _ = self.connect()
        body = json.dumps({"name": name, "subjects": [name], "storage": "file", "num_replicas": 1}).encode()
        while True:
            one.sendall(b"SUB _I 1\r\nPUB $JS.API.STREAM.CREATE.%s _I %d\r\n%s\r\n" % (name.encode(), len(body), body))
            _line(one)
            answer = json.loads(_line(one))
            if "config" in answer:
                one.close()
                return str((answer.get("cluster") or {}).get("leader", "m"))
            time.sleep(0.2)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def _line(one: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\r\n"):
        found += one.recv(1)
    return found[:-2]


def _publish(one: socket.socket, subject: str, count: int) -> None:
    """Publishes `count` messages and takes their acks."""
    inbox = b"_ACKS.%s" % subject.encode()
    one.sendall(b"SUB %s 7\r\n" % inbox)
    batch = (b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox, len(PAYLOAD), PAYLOAD)) * AT_ONCE
    sent = acked = 0
    while acked < count:
        while sent < count and sent - acked <= IN_FLIGHT - AT_ONCE:
            one.sendall(batch)
            sent += AT_ONCE
        acked += one.recv(1 << 18).count(b'"seq"')


def _send(one: socket.socket, subject: str, count: int) -> None:
    batch = (b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(PAYLOAD), PAYLOAD)) * AT_ONCE
    for _ in range(count // AT_ONCE):
        one.sendall(batch)


def _receive(one: socket.socket, subject: str, count: int) -> None:
    wanted = count * len(b"MSG %s 1 %d\r\n%s\r\n" % (subject.encode(), len(PAYLOAD), PAYLOAD))
    buffer = memoryview(bytearray(1 << 20))
    while wanted > 0:
        wanted -= one.recv_into(buffer)


def run(kind: str, workers: int, *, crossed: bool) -> Figures:
    """One run of `kind`, "publish" or "core"."""
    fork = get_context("fork").Process
    with tempfile.TemporaryDirectory() as folder:
        server = Server(workers, folder)
        names = ["m", "m-w1"][:workers] * 2
        count, parts = MESSAGES[kind], []
        if kind == "publish":
            leaders = [server.create(f"S{number}") for number in range(2)]
            for number, leader in enumerate(leaders):
                at = next((name for name in names if (name != leader) is crossed), leader)
                parts.append(fork(target=_publish, args=(server.connect(at)[0], f"S{number}", count)))
        else:
            for number, name in enumerate(names[:2]):
                subscriber = server.connect(name)[0]
                subscriber.sendall(b"SUB core.%d 1\r\nPING\r\n" % number)
                assert _line(subscriber) == b"PONG"
                publisher = server.connect(names[number + crossed])[0]
                parts += [
                    fork(target=_receive, args=(subscriber, f"core.{number}", count)),
                    fork(target=_send, args=(publisher, f"core.{number}", count)),
                ]
            time.sleep(0.3)  # the interest reaches the other worker
        before, began = server.used(), time.monotonic()
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        seconds = time.monotonic() - began
        used = [(after - earlier) / 1000 for earlier, after in zip(before, server.used(), strict=True)]
        server.stop()
    total = 2 * count
    return Figures(max(used) / total, sum(used) / total, total / seconds)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", choices=list(MESSAGES))


def main(arguments: argparse.Namespace) -> None:
    print(f"{os.cpu_count()} cores, {arguments.rounds} rounds in turns, medians")
    print("| load | workers | us of the busier worker | us of all | bound against one | messages/s | against one |")
    print("|---|---|---|---|---|---|---|")
    for kind in [arguments.load] if arguments.load else MESSAGES:
        cases = {"1": (1, False), "2, own": (2, False), "2, crossed": (2, True)}
        found: dict[str, list[Figures]] = {name: [] for name in cases}
        for _ in range(arguments.rounds):
            for name, (workers, crossed) in cases.items():
                found[name].append(run(kind, workers, crossed=crossed))
        medians = {name: Figures(*map(statistics.median, zip(*runs, strict=True))) for name, runs in found.items()}
        one = medians["1"]
        for name, mid in medians.items():
            print(
                f"| {kind} | {name} | {mid.busier:.2f} | {mid.all:.2f} | {one.busier / mid.busier:.2f} "
                f"| {mid.rate:,.0f} | {mid.rate / one.rate:.2f} |",
                flush=True,
            )
