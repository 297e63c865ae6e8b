"""What the API handlers ask of the cluster: `cluster.jetstream.JetStream` on a node, a fake in tests.

Called from the event loop. The two requests retry on their own while leaders change, for about 4 s, and then raise
ApiError 503/10008; nothing but ApiError comes out of them.
"""

from __future__ import annotations

from typing import Any, Protocol

from jetcluster.cluster.meta_state import Assignment


class Cluster(Protocol):
    @property
    def clustered(self) -> bool:
        """False on a standalone server: R > 1 is refused."""
        ...

    def assignment(self, account: str, name: str) -> Assignment | None:
        """What this node's meta replica says; it may lag, so None is not yet "no such stream"."""
        ...

    async def meta_request(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """`MetaService.handle(kind, body)` on the meta leader. A retry sends the same `body["request"]`."""
        ...

    async def stream_request(self, assignment: Assignment, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """Asks the leader of the stream's group (`cluster.stream_requests`). Every body also holds `revision`, that of
        the asker's assignment.

        | kind | body | result |
        |---|---|---|
        | ready | | as `info`, once the configuration of `revision` is in force and the stream can be
          published to from every connected node |
        | info | subjects_filter, deleted_details, offset | state, cluster, page [total, offset, limit], and
          `assignment` (to_dict) when the leader's is newer than `revision` |
        | purge | filter, seq, keep (0 or "": not given) | purged |
        | msg_get | payload, headers (bytes as latin-1) | response (the whole JSON reply); linearizable |
        | msg_delete | seq | deleted |
        | stepdown | preferred (server name or "") | {} |
        """
        ...

    async def settle(self, revision: int) -> None:
        """Waits until every connected node has applied index `revision` of the meta log, at most about 2 s: after a
        delete no node takes publishes for the stream any more."""
        ...

    async def used(self, account: str) -> tuple[int, int]:
        """Bytes of the account's memory and file streams on all reachable nodes."""
        ...
