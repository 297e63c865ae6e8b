"""All that is simulated: the machines of a cluster, those of its clients, the network between them, and the time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from random import Random
from typing import Any

from jetcluster.config.load import load_text
from jetcluster.config.options import Options
from tests.sim.cluster.loop import Scheduler, SimLoop
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.network import Address, Network
from tests.sim.cluster.trace import Bridge, Trace

CLIENT_PORT = 4222
ROUTE_PORT = 6222
SECRET = "routes"


class Violation(AssertionError):
    """A promise was broken."""


class Deployment:
    """`nodes`: how many. `failures` is what must not have happened: callbacks that raised, exceptions nobody saw."""

    def __init__(self, seed: int, nodes: int = 3, *, keep_trace: bool = False, config: str = "") -> None:
        """`config`: more lines of every node's configuration."""
        self.seed = seed
        self.rng = Random(seed)
        self.scheduler = Scheduler()
        self.trace = Trace(self.scheduler, keep=keep_trace)
        self.network = Network(self.scheduler, Random(self.rng.getrandbits(64)))
        self.failures: list[str] = []
        self.machines: dict[str, Machine] = {}
        self.clients: dict[str, Machine] = {}
        self._config = config
        self._tasks: list[asyncio.Task[Any]] = []
        for number in range(1, nodes + 1):
            self._add(f"n{number}", f"10.0.0.{number}")

    def _add(self, name: str, ip: str) -> Machine:
        seed = self.rng.getrandbits(64)
        machine = self.machines[name] = Machine(
            name, ip, self.scheduler, self.network, self.trace, seed, lambda: self._options(name, ip), self.failed
        )
        return machine

    def _options(self, name: str, ip: str) -> Options:
        routes = [
            f'"nats://{SECRET}:{SECRET}@{machine.host.ip}:{ROUTE_PORT}"'
            for machine in self.machines.values()
            if machine.name != name
        ]
        text = f"""
            server_name: {name}
            listen: "{ip}:{CLIENT_PORT}"
            jetstream {{ store_dir: "/data" }}
            cluster {{
              name: sim
              listen: "{ip}:{ROUTE_PORT}"
              authorization {{ user: {SECRET}, password: {SECRET} }}
              routes: [{", ".join(routes)}]
            }}
            {self._config}
        """
        options, _ = load_text(text, f"{name}.conf", {})
        return options

    def failed(self, text: str) -> None:
        self.trace.add("!", text)
        self.failures.append(text)

    # ---- clients and control

    def client(self, name: str) -> SimLoop:
        """A machine for a program that is no node; its process lives as long as the simulation."""
        ip = f"10.0.1.{len(self.clients) + 1}"
        seed = self.rng.getrandbits(64)
        machine = Machine(name, ip, self.scheduler, self.network, self.trace, seed, None, self.failed)
        self.clients[name] = machine
        return machine.begin()

    def spawn(self, loop: SimLoop, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = loop.create_task(work)
        self._tasks.append(task)
        return task

    def addresses(self, *names: str) -> list[Address]:
        """Of the client ports."""
        return [(self.machines[name].host.ip, CLIENT_PORT) for name in names or self.machines]

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
        """Raises what the task raised, and Violation where it takes longer than `most` seconds."""
        end = self.scheduler.now + most
        while not task.done():
            if self.scheduler.now >= end:
                raise Violation(f"not done after {most} s: {task.get_name()}")
            self.run(min(0.25, end - self.scheduler.now))
        task.result()

    def close(self) -> None:
        """Nothing of it runs any more."""
        for machine in (*self.machines.values(), *self.clients.values()):
            if machine.loop is not None:
                machine.loop.kill()

    def digest(self) -> str:
        """Of all that has happened."""
        self.trace.number(self.network.checksum)
        self.trace.number(self.network.segments)
        return self.trace.digest()
