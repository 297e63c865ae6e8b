"""Proof in the first INFO of a link: who speaks, and that the two speak to each other.

A signature of both greetings says who takes part in a connection, and not who stands between the two: a stranger could
name its own port as the address of a member, hand on what either side says until both take each other for linked, and
then speak for both. So an address that only others have named is part of what is signed. The dialer signs where it has
dialled, the acceptor where it can be reached, and each refuses what does not fit. An address that is configured as a
route is the operator's word, and may be another name of the same node.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jetcluster.mesh.auth import Handshake, Reason, Refused
from jetcluster.mesh.info import WILDCARDS, decode_proof, encode_info, join_url, split_url

if TYPE_CHECKING:
    from jetcluster.mesh.api import NodeInfo

_DIALLED: Final = b"jcmesh dialled\0"
_AT: Final = b"jcmesh at\0"


def first_info(
    me: NodeInfo, handshake: Handshake, sign: Callable[[bytes], bytes] | None, dialled: str, own: tuple[str, ...]
) -> bytes:
    """INFO as a frame. `dialled`: by the dialer, an address that it knows from others, "" for a configured route.
    `own`: see `own_addresses`."""
    if sign is None or not me.key:
        return encode_info(me)
    said = handshake.statement(dialer=handshake.dialer)
    if not handshake.dialer:
        return encode_info(me, sign(said), {"at": own, "bound": sign(_at(said, own)).hex()})
    if dialled:
        return encode_info(me, sign(_dialled(said, dialled)), {"dialled": dialled})
    return encode_info(me, sign(said))


def check(info: NodeInfo, body: bytes, handshake: Handshake, dialled: str, own: tuple[str, ...]) -> None:
    """`body`: the INFO of a peer with a key. Raises Refused, FrameError."""
    from jetcluster.mesh.node_key import verify

    proof = decode_proof(body)
    said = handshake.statement(dialer=not handshake.dialer)
    whole = _dialled(said, proof.dialled) if proof.dialled else said
    if not verify(info.key, whole, proof.signature):
        raise Refused(Reason.AUTHORIZATION, f"node {info.name!r} has not shown that the key it tells is its own")
    if proof.dialled and proof.dialled not in own:
        raise Refused(
            Reason.AUTHORIZATION,
            f"node {info.name!r} was told that this node is at {proof.dialled}, which is none of its addresses: "
            "configure cluster { advertise }, or a route",
        )
    if dialled and (dialled not in proof.at or not verify(info.key, _at(said, proof.at), proof.bound)):
        raise Refused(
            Reason.AUTHORIZATION,
            f"node {info.name!r} does not say that {dialled} is its address: configure its cluster {{ advertise }}, "
            "or a route",
        )


def own_addresses(cluster_url: str, sockname: tuple[str, int] | None) -> tuple[str, ...]:
    """The addresses of the node that accepted a connection: the advertised one, and the one that the connection came in
    at."""
    found = []
    if cluster_url and split_url(cluster_url)[0] not in WILDCARDS:
        found.append(cluster_url)
    if sockname is not None:
        found.append(join_url(sockname[0].removeprefix("::ffff:"), sockname[1]))
    return tuple(found)


def _dialled(said: bytes, address: str) -> bytes:
    return _DIALLED + address.encode() + b"\0" + said


def _at(said: bytes, addresses: tuple[str, ...]) -> bytes:
    return _AT + json.dumps(addresses).encode() + b"\0" + said
