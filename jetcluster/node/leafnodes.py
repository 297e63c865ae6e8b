"""From the configuration to the leaf links of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetcluster.auth.authenticator import Authenticator
from jetcluster.server.leafnodes import LeafNodes
from jetcluster.server.options import AuthResult

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.node.node import Node


def leafnodes_of(node: Node) -> LeafNodes:
    options = node.options

    def identify(
        connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None
    ) -> AuthResult:
        authenticator = node.server.authenticator  # the one of the last reload
        assert isinstance(authenticator, Authenticator)
        tls = options.leafnodes.tls
        return authenticator.check(
            connect,
            nonce,
            address,
            connection_type="LEAFNODE",
            certificate=certificate,
            by_certificate=tls is not None and tls.verify_and_map,
        )

    def has_jetstream(name: str) -> bool:
        if not options.jetstream.enabled or name == options.system_account_name:
            return False
        return options.has_jetstream(name)

    def max_leafnodes(name: str) -> int:
        account = (options.accounts or {}).get(name)
        return -1 if account is None else account.limits.max_leafnodes

    return LeafNodes(
        node.server, options.leafnodes, identify, has_jetstream, max_leafnodes, options.system_account_name
    )
