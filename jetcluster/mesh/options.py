"""`MeshOptions`: the settings of the node mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.mesh.auth import RouteCredentials
from jetcluster.mesh.frames import MAX_FRAME
from jetcluster.records import dataclass

if TYPE_CHECKING:
    import ssl

    from jetcluster.auth.certificates import PeerCertificate


@dataclass(slots=True, frozen=True)
class ConfiguredRoute:
    """One entry of --routes."""

    host: str
    port: int
    credentials: RouteCredentials | None = None


CertificateCheck = Callable[["PeerCertificate | None", bool], None]


@dataclass(slots=True, frozen=True)
class MeshTls:
    """The TLS of the routes: contexts of both ends, seconds for a handshake, and a further check of the peer's
    certificate."""

    accepting: ssl.SSLContext
    connecting: ssl.SSLContext
    timeout: float = 2.0
    """Seconds for a handshake."""
    check: CertificateCheck | None = None
    """Asked once a handshake is done, with the other end's certificate and whether this end accepts. Raises
    `auth.certificates.CertificateError`."""


@dataclass(slots=True, frozen=True)
class MeshOptions:
    """Times in seconds, sizes in bytes."""

    cluster_name: str
    host: str = "127.0.0.1"
    port: int = 0
    """0 or -1: a free port, shown in `NodeMesh.me.cluster_url`."""
    advertise: str = ""
    """host[:port] where others reach this node; default: the listener's. A wildcard host is replaced by each peer with
    the address it sees."""
    authorization: RouteCredentials | None = None
    """cluster { authorization }: the secret peers must prove to know, and the default of routes without credentials."""
    routes: tuple[ConfiguredRoute, ...] = ()
    handshake_timeout: float = 2.0
    silent_after: float = 0.8
    """Without a word of a node that has JetStream, which says ten times a second that it lives, no publisher waits for
    it: as soon as Raft suspects it (`RaftConfig.suspect_after`) others take its place."""
    stale_after: float = 3.5
    max_pending: int = 256 * 1024 * 1024
    """Per link."""
    socket_buffer: int = 256 * 1024
    """SO_SNDBUF and SO_RCVBUF of each link (Linux doubles them); 0 leaves it to the system. Bytes in there cannot be
    overtaken by a heartbeat: with the system's 10 MB a flood of messages delays Raft by half a second. The price is a
    bound of about this much per round-trip time on a link's throughput."""
    tls: MeshTls | None = None
    """Every connection begins with a handshake in which both ends show certificates."""
    sign: Callable[[bytes], bytes] | None = None
    """Signs with the key whose public part is `NodeInfo.key` (`identity`)."""
    trusted_network: bool = False
    """Strangers from other machines may be linked although nothing is asked of them."""
    max_frame: int = MAX_FRAME
    """Must be the same on all nodes and exceed max_payload by 128 KiB (subject, headers)."""
