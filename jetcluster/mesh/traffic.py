"""Traffic of links to other nodes, by account: /accstatz tells it apart from what clients send and get."""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.protocol.bus import Outgoing
from jetcluster.records import dataclass

MAX_ACCOUNTS = 16_384


@dataclass(slots=True)
class Traffic:
    """Messages and bytes (of headers and payloads) of one account."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


class RouteTraffic:
    """Traffic of all links of a node since its start. Names come from peers: beyond `MAX_ACCOUNTS` new ones are not
    counted."""

    def __init__(self) -> None:
        self.by_account: dict[str, Traffic] = {}

    def __getitem__(self, account: str) -> Traffic:
        found = self.by_account.get(account)
        if found is None:
            found = Traffic()
            if len(self.by_account) < MAX_ACCOUNTS:
                self.by_account[account] = found
        return found

    def sent(self, account: str, size: int) -> None:
        """One message."""
        traffic = self[account]
        traffic.out_msgs += 1
        traffic.out_bytes += size

    def sent_many(self, account: str, messages: Sequence[Outgoing]) -> None:
        traffic = self[account]
        traffic.out_msgs += len(messages)
        traffic.out_bytes += size_of(messages)

    def received(self, account: str, messages: int, size: int) -> None:
        traffic = self[account]
        traffic.in_msgs += messages
        traffic.in_bytes += size


def size_of(messages: Sequence[Outgoing]) -> int:
    return sum(len(headers) + len(payload) for _, _, headers, payload in messages)
