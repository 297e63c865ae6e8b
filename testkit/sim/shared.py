"""One simulated loop that many nodes share with their test, and the real mesh of each on the simulated network.

A test that waits ten seconds takes milliseconds, and always the same steps. Work takes no time here: two things happen
at the same moment unless somebody waits for the network or for a timer in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from jetcluster.budget import SLICE_SECONDS
from jetcluster.clock import Rng
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshListener
from jetcluster.mesh.frames import MAX_FRAME_BYTES
from jetcluster.mesh.identity import new_id
from jetcluster.mesh.info import split_url
from jetcluster.mesh.mesh import NodeMesh
from jetcluster.mesh.options import ConfiguredRoute, MeshOptions
from testkit.sim.layout import ROUTE_PORT
from testkit.sim.link import Link
from testkit.sim.loop import Scheduler, SimLoop
from testkit.sim.network import Endpoints, Host, Network
from testkit.twins.time import SeededRng

EPOCH_NS = 1_700_000_000_000_000_000
START = 1000.0
DELAY = 0.0005
"""Seconds that each segment takes at least."""

T = TypeVar("T")


class FreeClock:
    """The clock of a machine on which nothing takes time but waiting."""

    spent = 0.0

    def __init__(self, scheduler: Scheduler) -> None:
        self.slowness = 0.0
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    now = monotonic

    def uptime(self) -> float:
        return self.monotonic()

    def time_ns(self) -> int:
        return EPOCH_NS + int((self._scheduler.now - START) * 1e9)

    def true_delay(self, seconds: float) -> float:
        return seconds


class Strides:
    """A clock of its own for `LoopBudget`, as the loop's stands still while somebody works: it goes on with each look,
    so that a job does one step of its work per turn."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += SLICE_SECONDS
        return self._now

    def uptime(self) -> float:
        return self.monotonic()

    def time_ns(self) -> int:
        return EPOCH_NS


class VirtualLoop(SimLoop):
    """Also the `Clock` and the `Timers` of everything in the test."""

    def __init__(self) -> None:
        scheduler = Scheduler()
        scheduler.now = START
        clock = self.clock = FreeClock(scheduler)
        super().__init__(scheduler, clock, self._at_once, self._note)
        self.monotonic = self.uptime = clock.monotonic
        self.time_ns = clock.time_ns
        self.failures: list[str] = []
        self.homes: dict[str, Endpoints] = {}
        """Ports and connections of each node, by its address."""

    def _at_once(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        work()
        self.call_soon(done)

    def _note(self, text: str, error: BaseException | None) -> None:
        self.failures.append(f"{text}: {error!r}")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._note(str(context.get("message")), context.get("exception"))

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return self.homes[host].listen(factory, host, port)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        link = factory()
        own, _ = split_url(link.own_addresses[0])
        return await self.homes[own].dial(lambda: link, host, port)

    def within(self, function: Callable[..., T], *args: Any) -> T:
        """Calls the function as if in a turn."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return function(*args)
        finally:
            asyncio._set_running_loop(before)

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs to its end, in this turn, what waits for nothing."""
        try:
            self.within(work.send, None)
        except StopIteration:
            return
        raise AssertionError("it waits for something")

    def advance(self, seconds: float) -> None:
        """Runs all that is due within `seconds`."""
        self.scheduler.run(self.scheduler.now + seconds)

    def run(self, test: Coroutine[Any, Any, T]) -> T:
        """Until the test is over, and what it leaves is cancelled."""
        main = self.create_task(self._with_its_tasks(test))
        main.add_done_callback(lambda _: self.kill())
        self.scheduler.run(math.inf)
        assert main.done(), "nothing is left that could happen: the test would hang"
        result: T = main.result()
        return result

    async def _with_its_tasks(self, test: Coroutine[Any, Any, T]) -> T:
        try:
            return await test
        finally:
            running = asyncio._get_running_loop() is self  # not when what hangs is collected
            left = asyncio.all_tasks(self) - {asyncio.current_task()} if running else set()
            for task in left:
                task.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)


def virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time. It fails, too, when a callback raised or a task's exception was never
    looked at: in production nobody would have noticed either."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        loop = VirtualLoop()  # type: ignore[abstract]
        loop.run(test(*args, **kwargs))  # type: ignore[arg-type]
        gc.collect()
        assert not loop.failures, loop.failures

    return run


class SimMesh(NodeMesh):
    """The real mesh at an address of the simulated network; it can be started and killed between two turns."""

    def __init__(
        self,
        network: MeshNetwork,
        me: NodeInfo,
        sign: Callable[[bytes], bytes] | None,
        rng: Rng,
        listener: MeshListener | None = None,
    ) -> None:
        options = MeshOptions(
            "C", network.address(me.peer_id), ROUTE_PORT, sign=sign, trusted_network=True, max_frame=network.max_frame
        )
        super().__init__(me, options, clock=network.loop, rng=rng, listener=listener)
        self.network = network

    def start_now(self) -> None:
        """Dials all that run. The mesh waits for nothing when it starts."""
        self.network.loop.finish(self.start())

    async def start(self) -> None:
        others = self.network.meshes
        assert self.me.peer_id not in others, "this node runs already"
        routes = tuple(ConfiguredRoute(self.network.address(peer), ROUTE_PORT) for peer in others)
        self.options = replace(self.options, routes=routes)
        others[self.me.peer_id] = self
        await super().start()

    def stop_now(self) -> None:
        """The process is gone: all peers notice at once."""
        self.network.loop.within(self._die)

    def _die(self) -> None:
        self._stopping = True
        self.network.meshes.pop(self.me.peer_id, None)
        if self._ticker is not None:
            self._ticker.cancel()
        for target in self.dialer.targets.values():
            if target.task is not None:
                target.task.cancel()
        self.network.die(self.options.host)

    async def stop(self) -> None:
        self.network.meshes.pop(self.me.peer_id, None)
        await super().stop()

    @property
    def expected_nodes(self) -> int:
        """As the network says: the routes are those to nodes that ran when it started."""
        return self.network.expected

    @property
    def settled(self) -> bool:
        """Linked to all that run and can be reached."""
        mine, network = self.me.peer_id, self.network
        return all(p in self.links or p == mine or network.is_cut(p, mine) for p in network.meshes)


class MeshNetwork:
    """The simulated network with the meshes on it, by peer id."""

    def __init__(
        self, loop: VirtualLoop, *, rng: Rng | None = None, max_frame: int = MAX_FRAME_BYTES, expected: int = 0
    ) -> None:
        """`expected`: the nodes that routes name."""
        self.loop = loop
        self.expected = expected
        self.rng = rng or SeededRng(0)
        self.max_frame = max_frame
        self.tcp = Network(loop.scheduler, Random(1))
        self.meshes: dict[str, SimMesh] = {}
        """Running meshes."""
        self._addresses: dict[str, str] = {}
        self._cut: set[frozenset[str]] = set()

    def address(self, peer_id: str) -> str:
        """The address of the node's machine, which it keeps."""
        ip = self._addresses.get(peer_id)
        if ip is None:
            ip = self._addresses[peer_id] = f"10.0.0.{len(self._addresses) + 1}"
            host = self.tcp.hosts[ip] = Host(ip)
            self.loop.homes[ip] = Endpoints(self.tcp, host, self.loop)
            for other in self._addresses.values():
                self.tcp.link(ip, other).delay = self.tcp.link(other, ip).delay = DELAY
        return ip

    def mesh(
        self, name: str, peer_id: str | None = None, *, sign: Callable[[bytes], bytes] | None = None, **more: Any
    ) -> SimMesh:
        """A mesh that is not started yet. The same `peer_id` again, after `stop`, is a restart of that node. `more` is
        for its `NodeInfo`."""
        rng = SeededRng(self.rng.randrange(1 << 60))
        more = {"client_url": "", **more}
        info = NodeInfo(peer_id or new_id(rng), name, new_id(rng), "", **more)
        return SimMesh(self, info, sign, rng)

    def link(self, source: str, target: str) -> Link:
        """The direction from one node to another."""
        return self.tcp.link(self.address(source), self.address(target))

    def is_cut(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self._cut

    def cut(self, a: str, b: str) -> None:
        """Both sides notice at once that the link is down; frames under way are lost."""
        self._cut.add(frozenset((a, b)))
        self.loop.within(self.tcp.sever, self.address(a), self.address(b))

    def heal(self, a: str, b: str) -> None:
        """Lets the nodes reach each other; they need not wait for the time at which they dial next."""
        self._cut.discard(frozenset((a, b)))
        self.tcp.rejoin(self.address(a), self.address(b))
        self.dial(a, b)

    def dial(self, a: str, b: str) -> None:
        """The first of the two dials the other once more if both run and are not linked."""
        mesh = self.meshes.get(a)
        if mesh is not None and b in self.meshes and b not in mesh.links:
            self.loop.create_task(self._dial(mesh, self.address(b)))

    async def _dial(self, mesh: SimMesh, address: str) -> None:
        link = mesh.new_link(b"", dialer=True)
        with contextlib.suppress(OSError):
            await self.loop.create_connection(lambda: link, address, ROUTE_PORT)

    def die(self, address: str) -> None:
        """Ends what the process at this address has on the network."""
        for other in self._addresses.values():
            self.tcp.reset(address, other)
        self.loop.homes[address].drop(tell=True)

    def isolate(self, peer_id: str) -> None:
        for other in [other for other in self.meshes if other != peer_id]:
            self.cut(peer_id, other)

    def heal_all(self) -> None:
        for a, b in sorted(map(sorted, self._cut)):
            self.heal(a, b)

    def hold(self, peer_id: str) -> None:
        """Keeps all that goes to the node, and comes from it, until `release`, as while its process stands still.
        No connection is closed."""
        mine = self.address(peer_id)
        for other in self._addresses.values():
            self.tcp.link(mine, other).cut()
            self.tcp.link(other, mine).cut()

    def release(self) -> None:
        """All that waits arrives, in the order in which it was sent."""
        for _, link in self.tcp.links():
            link.heal(resend=0.0)
