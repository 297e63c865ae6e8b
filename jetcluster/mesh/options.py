"""`MeshOptions`: the settings of the node mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.mesh.auth import RouteCredentials
from jetcluster.mesh.frames import MAX_FRAME_BYTES
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
    """TLS of the routes: contexts of both ends, and a further check of the peer's certificate."""

    accepting: ssl.SSLContext
    connecting: ssl.SSLContext
    timeout: float = 2.0
    """Seconds for a handshake."""
    check: CertificateCheck | None = None
    """Called after a handshake with the peer's certificate and whether this end accepts. Raises
    `auth.certificates.CertificateError`."""


@dataclass(slots=True, frozen=True)
class MeshOptions:
    """Settings of the mesh. Times in seconds, sizes in bytes."""

    cluster_name: str
    host: str = "127.0.0.1"
    port: int = 0
    """0 or -1: a free port, shown in `NodeMesh.me.cluster_url`."""
    held_port: bool = False
    """True when the supervisor of workers holds the port (`net.shared_ports`)."""
    advertise: str = ""
    """host[:port] where peers reach this node; default: the listener's. Peers replace a wildcard host."""
    authorization: RouteCredentials | None = None
    """cluster { authorization }: the secret that peers must prove, and the default of routes without credentials."""
    routes: tuple[ConfiguredRoute, ...] = ()
    handshake_timeout: float = 2.0
    silent_after: float = 0.8
    """Silence of a node with JetStream, which sends heartbeats ten times per second, after which no publisher waits for
    it: once Raft suspects it (`RaftConfig.suspect_after`) others take its place."""
    stale_after: float = 3.5
    max_pending: int = 256 * 1024 * 1024
    """Per link."""
    socket_buffer: int = 256 * 1024
    """SO_SNDBUF and SO_RCVBUF of each link (Linux doubles them); 0 leaves it to the system. A heartbeat cannot overtake
    bytes in there: with the system's 10 MB a flood of messages delays Raft by half a second. The price is a bound of
    about this much per round-trip time on a link's throughput."""
    tls: MeshTls | None = None
    """TLS of the routes; both ends must show certificates."""
    sign: Callable[[bytes], bytes] | None = None
    """Signs with the key whose public part is `NodeInfo.key` (`identity`)."""
    trusted_network: bool = False
    """True when unauthenticated nodes on other machines may be linked."""
    max_frame: int = MAX_FRAME_BYTES
    """Must be the same on all nodes and exceed max_payload by 128 KiB (subject, headers)."""
