"""All that is simulated: the machines of a cluster, those of its clients, the network between them, and the time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import re
from collections.abc import Coroutine, Iterator, Sequence
from random import Random
from typing import Any, cast

from jetcluster.config.load import load_text
from jetcluster.config.options import Options
from jetcluster.logs import Logger
from jetcluster.model.machines import tags_of
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.node.node import Node
from jetcluster.node.platform import Platform
from jetcluster.node.process import reloading
from testkit.sim.layout import Entrance, Server, cluster
from testkit.sim.loop import Scheduler, SimLoop
from testkit.sim.machine import Machine
from testkit.sim.network import Address, Network
from testkit.sim.trace import Bridge, SimLog, Trace
from testkit.sim.vows import Vows

MAIN = "sim"
"""The cluster that is no leaf."""
COPIES = 3
"""Replicas of a stream, voters of its group, of which one may lose its data."""
SHRINKS = 15.0
"""Seconds after which a change of a stream that somebody asks for is known to all, or comes to nothing."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Violation(AssertionError):
    """A promise was broken."""


def without_addresses(text: str) -> str:
    """The text without addresses of objects, which differ from process to process."""
    return _ADDRESS.sub("", text)


class Deployment:
    """`failures` is what must not have happened: callbacks that raised, exceptions nobody saw."""

    def __init__(self, seed: int, servers: Sequence[Server] = cluster(3), *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.servers: dict[str, Server] = {}
        """The servers by name; one that is replaced counts from the next start or reload (SIGHUP) of its node on."""
        self.rng = Random(seed)
        self.scheduler = Scheduler()
        self.trace = Trace(self.scheduler, keep=keep_trace)
        self.network = Network(self.scheduler, Random(self.rng.getrandbits(64)))
        self.failures: list[str] = []
        self.victims: dict[str, None] = {}
        """The machines whose data was damaged at some time (`expendable.py`)."""
        self.off: set[str] = set()
        """The machines that no supervisor starts."""
        self.drifted: dict[tuple[str, int], int] = {}
        """(server, group) of replicas that were changed behind everybody's back, until they are as the others or
        gone, with the index up to which they were."""
        self.emptying = ""
        """Id of the server that an exam empties: no administrator puts it back into use meanwhile."""
        self.left_behind = False
        """A member of a stream is cut off until the stream has moved; with a second one that is, nothing would move."""
        self.put_back: set[str] = set()
        """Raft's ids of servers that were emptied, and that somebody has asked to use again."""
        self.expected: set[str] = set()
        """Errors that a workload brings about, by the beginnings of their log messages: they fail nothing."""
        self.strangers: dict[str, int] = {}
        """By server, those who came to it and may have said what no server says."""
        self._shrinking: dict[object, float] = {}
        """Changes that were asked for and leave a stream with fewer than COPIES: when they are known to all or came to
        nothing."""
        self.asked = 0
        """Requests of administrators, each of whom has an inbox of their own, where no late answer to another comes."""
        self.configs: dict[str, list[dict[str, Any]]] = {}
        """By stream what administrators asked for, with an answer or without: the whole configuration, as they had read
        it before. What others changed meanwhile is lost then."""
        self._relaxed = False
        self.power_failures: list[float] = []
        """The times at which machines lost power."""
        self.machines: dict[str, Machine] = {}
        self.names: dict[str, str] = {}
        """Names of servers, by their addresses."""
        self.vows = Vows(self)
        self.network.overhear = self.vows.overhear
        self.clients: dict[str, Machine] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        for server in servers:
            self.add(server)

    def add(self, server: Server) -> Machine:
        """One more machine, which is off; those there are know nothing of it until they start or reload."""
        self.servers[server.name] = server
        machine = self.machines[server.name] = self._machine(server.name, server.ip)
        self.names[server.ip] = server.name
        machine.power_failures, machine.expected = self.power_failures, self.expected
        machine.vows = self.vows
        machine.make_node = functools.partial(self._node, server.name)
        return machine

    def _machine(self, name: str, ip: str) -> Machine:
        seed = self.rng.getrandbits(64)
        return Machine(name, ip, self.scheduler, self.network, self.trace, seed, self.failed)

    def _node(self, name: str, log: SimLog, platform: Platform) -> Node:
        """The node as `servers` describes it now."""

        def read() -> Options:
            server = self.servers[name]
            options: Options = load_text(server.text(list(self.servers.values())), f"{name}.conf", {})[0]
            if server.worker_of:  # tags that only a supervisor gives
                options.server_tags = [*options.server_tags, *tags_of(server.worker_of, server.worker)]
            return options

        return Node(read(), cast(Logger, log), reloading(read), platform, NodeMonitoring)

    def failed(self, text: str) -> None:
        text = without_addresses(text)
        self.trace.add("!", text)
        self.failures.append(text)

    @property
    def relaxed(self) -> bool:
        """A loss of power may take what was acknowledged."""
        self._relaxed |= any(server.sync_interval for server in self.servers.values())
        return self._relaxed

    @contextlib.contextmanager
    def resizing(self, copies: int) -> Iterator[int]:
        """Around a request that gives a stream `copies` replicas; yields how many it is to ask for. A machine on which
        damage hides must not come to have the only copy; and nothing is damaged while a stream may be about to have
        fewer than COPIES."""
        if copies >= COPIES or any(machine.hides_damage for machine in self.machines.values()):
            yield max(copies, COPIES)
            return
        key = object()
        self._shrinking[key] = math.inf
        try:
            yield copies
        except BaseException:
            self._shrinking[key] = self.scheduler.now + SHRINKS
            raise
        del self._shrinking[key]

    @property
    def shrinks(self) -> bool:
        """A stream may be about to have fewer than COPIES replicas, and not every server may know of it."""
        return any(until > self.scheduler.now for until in self._shrinking.values())

    # ---- clients and control

    def client(self, name: str) -> SimLoop:
        """A machine for a program that is no node; its process lives as long as the simulation."""
        ip = f"10.0.1.{len(self.clients) + 1}"
        machine = self.clients[name] = self._machine(name, ip)
        return machine.begin()

    def spawn(self, loop: SimLoop, work: Coroutine[Any, Any, Any], name: str = "work") -> asyncio.Task[Any]:
        task = loop.create_task(work, name=name)
        self._tasks.append(task)
        return task

    def members(self, cluster: str | None = None) -> list[str]:
        """Names of the servers of one cluster: the main one, or the server that stands alone, unless it is named."""
        servers = self.servers.values()
        if cluster is None:
            cluster = MAIN if any(server.cluster == MAIN for server in servers) else ""
        return [server.name for server in servers if server.cluster == cluster]

    def addresses(self, *names: str) -> list[Address]:
        """Addresses of the client ports; of the main cluster's by default."""
        return [(self.servers[name].ip, Entrance.port) for name in names or self.members()]

    @property
    def running(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.runs]

    # ---- life

    def run(self, seconds: float) -> None:
        """Lets the time go on."""
        bridge, root = Bridge(), logging.getLogger("jetcluster")
        propagate, level = root.propagate, root.level
        root.addHandler(bridge)
        root.propagate = False
        root.setLevel(logging.INFO)
        try:
            self.scheduler.run(self.scheduler.now + seconds)
        finally:
            root.removeHandler(bridge)
            root.propagate = propagate
            root.setLevel(level)

    def run_until_done(self, task: asyncio.Task[Any], most: float) -> None:
        """Raises what this or another task raised, and Violation where it takes longer than `most` seconds or something
        happened that must not."""
        end = self.scheduler.now + most
        while not task.done():
            if self.scheduler.now >= end:
                raise Violation(f"not done after {most} s: {task.get_name()}")
            self.run(min(0.25, end - self.scheduler.now))
            self._look()
        task.result()

    def _look(self) -> None:
        if self.failures:
            raise Violation(self.failures[0])
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.remove(task)
            task.result()

    def close(self) -> None:
        """Nothing of it runs any more."""
        for machine in (*self.machines.values(), *self.clients.values()):
            if machine.loop is not None:
                machine.loop.kill()

    def digest(self) -> str:
        """A digest of all that has happened."""
        self.trace.number(self.network.checksum)
        self.trace.number(self.network.segments)
        return self.trace.digest()
