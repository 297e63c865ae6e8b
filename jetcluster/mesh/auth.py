"""Mutual authentication of two nodes, without I/O.

    dialer                                acceptor
    HELLO(who, nonce)            ->
                                 <-       CHALLENGE(who, nonce)
    PROOF(HMAC)                  ->       checked
    checked                      <-       PROOF(HMAC)

A proof is HMAC-SHA256 over a label of the prover's side and both greetings, so it binds ids, names, cluster and both
nonces, and cannot be reflected or replayed. The dialer proves itself first: a stranger that connects learns nothing to
test passwords against. The key is derived from `cluster { authorization }` or the route URL's credentials. Without
authorization both sides use an empty key: only the cluster's name is compared, and any process that reaches the port
may join.

The first INFO of a link (`first_info`) proves the identity of both ends, and that they are connected to each other.

A signature of both greetings proves the two ends of a connection, but not that nothing is between them. A stranger
could announce its own port as the address of a member, relay both handshakes until each end takes the other for linked,
and then speak for both. Therefore an address known from other nodes only is part of the signed text: the dialer signs
where it has dialled, the acceptor where it can be reached, and each refuses a mismatch. An address configured as a
route is the operator's statement, and may be another name of the same node.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Final

from jetcluster.errors import PeerError
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.frames import VERSION, FrameError, Kind, frame
from jetcluster.mesh.identity import PEER_ID_LENGTH, is_peer_id
from jetcluster.mesh.info import WILDCARDS, decode_proof, encode_info, join_url, split_url
from jetcluster.records import dataclass

NONCE_BYTES = 32
MAX_NAME_BYTES = 512

_MAGIC = b"jcmesh"
_FIXED = struct.Struct(f"!6sBB{PEER_ID_LENGTH}s{PEER_ID_LENGTH}s{NONCE_BYTES}sHH")
_KEY_ROUNDS = 10_000
_TEXT_BYTES = 256
"""Bytes of a refusal's text."""

_DIALLED: Final = b"jcmesh dialled\0"
_AT: Final = b"jcmesh at\0"


class Reason(IntEnum):
    """Reason of a refusal, as sent to the other side."""

    MALFORMED = 1
    VERSION = 2
    CLUSTER = 3
    AUTHORIZATION = 4
    SELF = 5
    NAME = 6
    DUPLICATE = 7
    BUSY = 8
    LEFT_OUT = 9
    """The cluster continues without this node, whose store is outdated; the text begins with the seconds since then."""


class Refused(PeerError):
    """The connection must not become a link."""

    def __init__(self, reason: Reason, text: str, *, by_peer: bool = False, signature: bytes = b"") -> None:
        super().__init__(text)
        self.reason = reason
        self.by_peer = by_peer
        """True when the other side sent it in a REFUSED frame."""
        self.signature = signature
        """The other side's signature over `Handshake.last_word`; b"" without one."""


@dataclass(slots=True, frozen=True)
class RouteCredentials:
    """User and password of the routes, the same on all nodes of a cluster. Its `repr` hides the password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, password=***)"


@lru_cache(maxsize=64)
def derive_key(cluster: str, credentials: RouteCredentials) -> bytes:
    """Returns 32 bytes; takes some milliseconds on purpose, once per process and set of credentials."""
    salt = b"jetcluster mesh\0" + cluster.encode() + b"\0" + credentials.user.encode()
    return hashlib.pbkdf2_hmac("sha256", credentials.password.encode(), salt, _KEY_ROUNDS)


@dataclass(slots=True, frozen=True)
class Greeting:
    """Body of HELLO and CHALLENGE."""

    peer_id: str
    boot_id: str
    name: str
    cluster: str
    nonce: bytes
    authorization: bool
    """True when this side links only with peers that prove knowledge of its secret."""

    def encode(self) -> bytes:
        name, cluster = self.name.encode(), self.cluster.encode()
        if len(name) > MAX_NAME_BYTES or len(cluster) > MAX_NAME_BYTES:
            raise ValueError(f"server or cluster name is longer than {MAX_NAME_BYTES} bytes")
        fixed = _FIXED.pack(
            _MAGIC,
            VERSION,
            self.authorization,
            self.peer_id.encode(),
            self.boot_id.encode(),
            self.nonce,
            len(name),
            len(cluster),
        )
        return fixed + name + cluster

    @classmethod
    def decode(cls, body: bytes) -> Greeting:
        """Raises Refused for another version and FrameError for anything malformed."""
        if body[: len(_MAGIC)] != _MAGIC or len(body) <= len(_MAGIC):
            raise FrameError("greeting of something else than a jetcluster node")
        if body[len(_MAGIC)] != VERSION:
            raise Refused(Reason.VERSION, f"mesh protocol version {body[len(_MAGIC)]}, ours is {VERSION}")
        if len(body) < _FIXED.size:
            raise FrameError("greeting is too short")
        _, _, flags, peer_id, boot_id, nonce, name_length, cluster_length = _FIXED.unpack_from(body)
        split = _FIXED.size + name_length
        if max(name_length, cluster_length) > MAX_NAME_BYTES or split + cluster_length != len(body) or flags > 1:
            raise FrameError("greeting's lengths do not fit")
        try:
            texts = peer_id.decode(), boot_id.decode(), body[_FIXED.size : split].decode(), body[split:].decode()
        except UnicodeDecodeError as error:
            raise FrameError("greeting is not UTF-8") from error
        if not is_peer_id(texts[0]) or not is_peer_id(texts[1]) or not texts[2].isprintable():
            raise FrameError("greeting holds a bad id or name")
        return cls(*texts, nonce, bool(flags))


class Handshake:
    """One side of one connection's handshake. `key` is b"" when this side has no secret to offer."""

    def __init__(self, me: Greeting, key: bytes, *, dialer: bool) -> None:
        self.me = me
        self.dialer = dialer
        self.remote: Greeting | None = None
        self.done = False
        self._key = key
        self._transcript = b""

    def start(self) -> bytes:
        """Returns the bytes to send when the connection is made."""
        return frame(Kind.HELLO, self.me.encode()) if self.dialer else b""

    def receive(self, kind: int, body: bytes) -> bytes:
        """Takes one frame; returns bytes to send. After Refused or FrameError the connection must be closed."""
        if kind == Kind.REFUSED:
            raise decode_refused(body)
        if self.done or kind != self._expected():
            raise FrameError(f"frame of kind {kind} in the handshake")
        if kind == Kind.PROOF:
            return self._check_proof(body)
        remote = Greeting.decode(body)
        self.remote = remote
        self._compare(remote)
        if self.dialer:
            self._bind(self.me.encode(), body)
            return frame(Kind.PROOF, self._proof(dialer=True))
        challenge = self.me.encode()
        self._bind(body, challenge)
        return frame(Kind.CHALLENGE, challenge)

    def statement(self, *, dialer: bool) -> bytes:
        """Returns the text that one side of this connection signs with its node's key (`identity`)."""
        assert self.done
        return b"jcmesh node\0" + (b"dialer\0" if dialer else b"acceptor\0") + self._transcript

    def last_word(self, text: str, *, dialer: bool) -> bytes:
        """Returns the text that one side signs when it reports to the other that the cluster left it out: the report
        ends a node for good, and the password alone must not suffice for it."""
        assert self.done
        side = b"dialer\0" if dialer else b"acceptor\0"
        return b"jcmesh left out\0" + side + self._transcript + text.encode()

    def _expected(self) -> Kind:
        if self.remote is not None:
            return Kind.PROOF
        return Kind.CHALLENGE if self.dialer else Kind.HELLO

    def _compare(self, remote: Greeting) -> None:
        if remote.peer_id == self.me.peer_id:
            if remote.boot_id == self.me.boot_id:
                raise Refused(Reason.SELF, "connected to itself")
            raise Refused(
                Reason.NAME, f"node {remote.name!r} has our peer id {remote.peer_id}: was a store directory copied?"
            )
        if remote.cluster != self.me.cluster:
            raise Refused(Reason.CLUSTER, f"cluster name {remote.cluster!r} is not ours {self.me.cluster!r}")
        acceptor = self.me if not self.dialer else remote
        if not acceptor.authorization:
            if self.me.authorization or remote.authorization:
                raise Refused(Reason.AUTHORIZATION, "one of the nodes has cluster authorization, the other has none")
            self._key = b""
        elif not self._key:
            raise Refused(Reason.AUTHORIZATION, "authorization required, and we have no credentials for this route")

    def _bind(self, hello: bytes, challenge: bytes) -> None:
        self._transcript = len(hello).to_bytes(4, "big") + hello + challenge

    def _proof(self, *, dialer: bool) -> bytes:
        label = b"dialer\0" if dialer else b"acceptor\0"
        return hmac.digest(self._key, label + self._transcript, "sha256")

    def _check_proof(self, body: bytes) -> bytes:
        if not hmac.compare_digest(body, self._proof(dialer=not self.dialer)):
            raise Refused(Reason.AUTHORIZATION, "authorization violation")
        self.done = True
        return b"" if self.dialer else frame(Kind.PROOF, self._proof(dialer=False))


def encode_refused(reason: Reason, text: str, signature: bytes = b"") -> bytes:
    """Returns a REFUSED frame. The text of a signed one is padded; the signature follows it."""
    raw = shortened(text).encode(errors="replace")
    return frame(Kind.REFUSED, bytes((reason,)) + (raw.ljust(_TEXT_BYTES) + signature if signature else raw))


def decode_refused(body: bytes) -> Refused:
    """Returns the peer's refusal as an exception. Its text is untrusted: shortened and made printable."""
    if not body or not Reason.MALFORMED <= body[0] <= Reason.LEFT_OUT:
        raise FrameError("malformed refusal")
    said, signature = body[1 : 1 + _TEXT_BYTES].decode(errors="replace"), body[1 + _TEXT_BYTES :]
    text = "".join(c if c.isprintable() else "?" for c in said).rstrip(" ")
    return Refused(Reason(body[0]), text, by_peer=True, signature=signature)


def shortened(text: str) -> str:
    """Returns the part of the text that a refusal carries, as the other end reads it."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable.encode(errors="replace")[:_TEXT_BYTES].decode(errors="ignore").rstrip(" ")


def first_info(
    me: NodeInfo, handshake: Handshake, sign: Callable[[bytes], bytes] | None, dialled: str, own: tuple[str, ...]
) -> bytes:
    """Returns INFO as a frame. `dialled`: the peer's announced address, "" for a route. `own`: `own_addresses`."""
    if sign is None or not me.key:
        return encode_info(me)
    said = handshake.statement(dialer=handshake.dialer)
    if not handshake.dialer:
        return encode_info(me, sign(said), {"at": own, "bound": sign(_at(said, own)).hex()})
    if dialled:
        return encode_info(me, sign(_dialled(said, dialled)), {"dialled": dialled})
    return encode_info(me, sign(said))


def check_info(info: NodeInfo, body: bytes, handshake: Handshake, dialled: str, own: tuple[str, ...]) -> None:
    """Checks the proof in `body`, the INFO of a peer with a key. Raises Refused and FrameError."""
    from jetcluster.mesh.identity import verify

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
    """Returns the addresses of the accepting node: the advertised one, and the one at which the connection came in."""
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
