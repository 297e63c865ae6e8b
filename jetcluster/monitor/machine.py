"""`MachinePages`: the monitoring pages of all workers of this machine, which any of them answers for.

The worker that has the connection asks the others over the mesh, and adds up (`machine_sums`). `worker=<number>` in the
query asks for one worker's own page. What does not answer is missing in the sums, and named.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from jetcluster.budget import Steps
from jetcluster.config.options import WorkerOptions
from jetcluster.errors import PassingError
from jetcluster.mesh.api import MeshError
from jetcluster.model.codec import encoding
from jetcluster.model.machines import WORKER_TAG, machine_of
from jetcluster.monitor.machine_sums import labelled, merged, overview, whole, worst
from jetcluster.monitor.source import WORKER_METHOD, Health, Json, Query, QueryError
from jetcluster.monitor.stacksz import stacksz

if TYPE_CHECKING:
    from jetcluster.monitor.metrics import Metrics
    from jetcluster.monitor.pages import NodeSource
    from jetcluster.node.node import Node

ASK_SECONDS: Final = 2.0
_ASKER: Final = "http"
HEALTH, METRICS, STACKS = "healthz", "metrics", "stacksz"


class WorkerAbsentError(PassingError):
    """The worker that a query names does not answer."""


class MachinePages:
    """The pages of one machine, in the process of worker `place`."""

    def __init__(self, node: Node, place: WorkerOptions, source: NodeSource, metrics: Metrics) -> None:
        assert node.jetstream is not None
        self._node, self._place = node, place
        self._source, self._metrics = source, metrics
        self._mesh = node.jetstream.mesh

    async def page(self, name: str, query: Query) -> Json:
        """Returns a page of the machine. Raises QueryError, BusyError."""
        asked = whole(query)
        answers, missing = await self._all(name, asked)
        found = {index: json.loads(answer) for index, answer in answers.items()}
        machine = merged(name, query, found)
        if name == "varz":
            machine["workers"] = overview([{**page, "worker": index} for index, page in sorted(found.items())])
        return machine | ({"missing_workers": missing} if missing else {})

    async def render(self, page: Json) -> bytes:
        """Returns the text of a page. Raises BusyError."""
        return await self._source.run(_ASKER, encoding(page, indent=2, ensure_ascii=False))

    async def health(self, query: Query) -> Health:
        """Returns the health of the machine. Raises QueryError."""
        answers, _ = await self._all(HEALTH, query)
        found: dict[int, Health | None] = dict.fromkeys(range(self._place.count))
        for index, answer in answers.items():
            body = json.loads(answer)
            found[index] = Health(body["status"], body["body"])
        return worst(found)

    async def metrics(self, query: Query) -> bytes:
        """Returns the metrics of all workers. Raises QueryError."""
        return labelled((await self._all(METRICS, query))[0])

    async def of_worker(self, name: str, query: Query) -> bytes:
        """Returns the page of the worker that the query names. Raises QueryError and WorkerAbsentError."""
        wanted = query["worker"]
        if not wanted.isascii() or not wanted.isdigit() or int(wanted) >= self._place.count:
            raise QueryError(f"worker must be a number below {self._place.count}")
        rest = {key: value for key, value in query.items() if key != "worker"}
        try:
            return await self._ask(int(wanted), name, rest)
        except MeshError as error:
            raise WorkerAbsentError(f"worker {wanted}: {error}") from error

    # ---- between workers

    async def _all(self, name: str, query: Query) -> tuple[dict[int, bytes], list[int]]:
        """Returns the answers by worker, and the workers without one. Raises what this worker's own page raises."""
        mine = self._place.index
        others = [index for index in range(self._place.count) if index != mine]
        own = await self._ask(mine, name, query)  # a bad query is refused before anybody else is asked
        told = await asyncio.gather(*(self._ask(index, name, query) for index in others), return_exceptions=True)
        found, missing = {mine: own}, []
        for index, answer in zip(others, told, strict=True):
            if isinstance(answer, bytes):
                found[index] = answer
            else:
                missing.append(index)
        return found, missing

    async def _ask(self, index: int, name: str, query: Query) -> bytes:
        """Raises MeshError for another worker, and what the page raises for this one."""
        if index == self._place.index:
            return await self._make(name, query)
        peer = self._peers().get(index)
        if peer is None:
            raise MeshError("it is not connected")
        return await self._mesh.call(peer, WORKER_METHOD, json.dumps([name, dict(query)]).encode(), ASK_SECONDS)

    def _peers(self) -> dict[int, str]:
        """Returns the connected other workers of this machine: peer ids by number."""
        mine, found = machine_of(self._mesh.me.tags), {}
        for peer, info in self._mesh.peers.items():
            if machine_of(info.tags) == mine:
                number = next(tag for tag in info.tags if tag.startswith(WORKER_TAG)).removeprefix(WORKER_TAG)
                found[int(number)] = peer
        return found

    async def serve(self, peer: str, payload: bytes) -> bytes:
        """Answers WORKER_METHOD. Raises MeshError, and what the page raises."""
        if peer not in self._peers().values():
            raise MeshError("it is no worker of this machine")
        name, query = json.loads(payload)
        return await self._make(name, query)

    async def _make(self, name: str, query: Query) -> bytes:
        """Makes this worker's own page. Raises QueryError, KeyError, BusyError."""
        if name == METRICS:
            return await self._metrics.scrape(query)
        if name == HEALTH:
            health = await self._source.healthz(query)
            return json.dumps({"status": health.status, "body": health.body}).encode()
        if name == STACKS:
            return stacksz().encode()
        return await self._source.run(_ASKER, _encoded(self._source.in_steps(name, query)))


def _encoded(page: Steps[Json]) -> Steps[bytes]:
    return (yield from encoding((yield from page)))
