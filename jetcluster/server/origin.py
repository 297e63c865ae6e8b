"""`ServerOrigin`: where messages come from that no client of this server sent (`protocol.bus.Origin`)."""

from __future__ import annotations

from jetcluster.protocol.bus import Origin


class ServerOrigin(Origin):
    """Messages that the server itself publishes, or that a peer handed over."""

    __slots__ = ("account", "kind", "peer_id")

    def __init__(self, kind: str, account: str, peer_id: str = "") -> None:
        self.kind = kind
        self.account = account
        self.peer_id = peer_id
