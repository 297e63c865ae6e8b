"""What the API handlers ask of the cluster: `cluster.jetstream.JetStream` on a node, a fake in tests.

Called from the event loop. The two requests retry on their own while leaders change, for 3.5 s (one that is under way
for as long as it gets on), and then raise ApiError 503/10008; nothing but ApiError comes out of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from jetcluster.errors import ApiError
from jetcluster.meta.state import Assignment


class Cluster(Protocol):
    @property
    def clustered(self) -> bool:
        """False on a standalone server: R > 1 is refused."""
        ...

    @property
    def level(self) -> int:
        """Which commands all nodes understand (`stream.levels`)."""
        ...

    def assignment(self, account: str, name: str) -> Assignment | None:
        """What this node's meta replica says; it may lag, so None is not yet "no such stream"."""
        ...

    def mirrors_of(self, account: str, name: str) -> list[str]:
        """Names of the account's streams that mirror its stream `name`, sorted."""
        ...

    async def meta_request(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """`MetaService.handle(kind, body)` on the meta leader. A retry sends the same `body["request"]`."""
        ...

    async def stream_request(
        self,
        assignment: Assignment,
        kind: str,
        body: dict[str, Any],
        under_way: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Asks the leader of the stream's group (`cluster.stream_requests`). Every body also holds `revision`, that of
        the asker's assignment. `under_way` is called once when the leader says that the request takes longer; it is
        answered when it is done then, and given up when it does not get on.

        | kind | body | result |
        |---|---|---|
        | ready | | as `info`, once the configuration of `revision` is in force and the stream can be
          published to from every connected node |
        | info | subjects_filter, deleted_details, offset | state, cluster, page [total, offset, limit], links
          (`mirror` or `sources` as STREAM.INFO shows them, or {}), and
          `assignment` (to_dict) when the leader's is newer than `revision` |
        | purge | filter, seq, keep (0 or "": not given) | purged |
        | msg_get | payload, headers (bytes as latin-1) | response (the whole JSON reply); linearizable |
        | msg_delete | seq, no_erase | deleted |
        | members | | voters, learners: by the group's newest committed configuration |
        | stepdown | placement (cluster, tags, preferred; {}: any) | {} |
        | object | action, name, deliver, offset, limit, reply (`objects.request`) | answer (JSON text, "" when the
          leader has answered to `reply` itself) |
        | consumer_create | name, config (with defaults), action, request, max_consumers (0: any number)
          | info, created |
        | consumer_info | name | the info object |
        | consumer_list | offset, limit | total, consumers [info objects] |
        | consumer_names | offset, limit | total, names (sorted) |
        | consumer_delete | name | {} |
        | consumer_pause | name, pause_until (Unix ns, 0: go on) | {} |
        | consumer_reset | name, seq (0: to the ack floor) | info, reset_seq |
        | consumer_unpin | name, group | {} |
        | consumer_stepdown | name, preferred (server name or "") | {} |

        A consumer's info object is that of CONSUMER.INFO without `type`; its `config` is
        the replicated one as it is: `model.consumer_rules.shown` makes of it what clients see.
        """
        ...

    async def rescue_meta(self, wanted: int | ApiError, by: str) -> list[dict[str, Any]]:
        """The answers of all connected servers to META.RESCUE with `quorum_needed` `wanted`
        (`cluster.meta_rescue.MetaRescue.rescue`), this server's first; an error is everybody's answer as it is."""
        ...

    async def settle(self, revision: int) -> None:
        """Waits until every connected node has applied index `revision` of the meta log, at most about 2 s: after a
        delete no node takes publishes for the stream any more."""
        ...

    async def used(self, account: str) -> tuple[int, int, int]:
        """Bytes of the account's memory and file streams on all reachable nodes, every replica counted, and how many
        consumers its streams have."""
        ...

    async def used_by_tier(self, account: str) -> dict[int, tuple[int, int, int]]:
        """The same by the streams' number of replicas."""
        ...
