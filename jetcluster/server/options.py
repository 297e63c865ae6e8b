"""What the client-facing server can be told: `ServerOptions`, and the shape of the authenticator it asks.

Defaults are nats-server's. `config` maps flags and files onto this.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, cast

from jetcluster import API_LEVEL, REPORTED_VERSION
from jetcluster.records import dataclass

if TYPE_CHECKING:
    import ssl

    from jetcluster.auth.certificates import PeerCertificate


@dataclass(slots=True, frozen=True)
class AccountLimits:
    """What the connections of one account may take; -1 is no limit of its own. Payload: bytes per message.
    Subscriptions: per connection, as in nats-server."""

    connections: int = -1
    subscriptions: int = -1
    payload: int = -1


@dataclass(slots=True)
class ServerOptions:
    """Sizes in bytes, times in seconds."""

    host: str = "0.0.0.0"  # noqa: S104 - nats-server's default; `-a` narrows it
    port: int = 4222
    """-1 asks the system for a free port; the bound one is in `Server.port`."""
    server_name: str = ""
    """Empty: the server id is the name."""
    version: str = REPORTED_VERSION
    client_advertise: str = ""
    """host[:port] told to clients in place of the listener's address."""
    no_advertise: bool = False
    """Leave connect_urls out of INFO."""

    max_payload: int = 1024 * 1024
    max_control_line: int = 4096
    max_connections: int = 65536
    max_subscriptions: int = 0
    """Per connection; 0 is no limit."""
    max_sub_tokens: int = 0
    max_pending: int = 64 * 1024 * 1024
    max_closed_clients: int = 10_000

    ping_interval: float = 120.0
    ping_max: int = 2
    write_deadline: float = 10.0
    write_timeout: str = "default"
    """"retry": a client that has taken nothing for write_deadline is told of in the log and kept; else it is closed."""
    no_fast_producer_stall: bool = False
    """Publishers are not slowed down for the sake of slow subscribers."""
    trace: bool = False
    trace_headers: bool = False
    max_traced_msg_len: int = 0
    auth_timeout: float = 2.0
    lame_duck_duration: float = 120.0
    lame_duck_grace_period: float = 10.0

    no_header_support: bool = False
    cluster_name: str = ""
    """Empty: not clustered, and INFO has no `cluster`."""
    jetstream: bool = False
    domain: str = ""
    api_level: int = API_LEVEL
    global_is_open: bool = False
    """Who has no credentials is in `$G`, while wrong ones are refused; INFO says `auth_required` all the same."""
    no_auth_user: str = ""
    """Only read to decide whether INFO shows `auth_required` and a first verb other than CONNECT is served;
    the authenticator makes the decision itself."""

    system_account_name: str = "$SYS"
    account_limits: dict[str, AccountLimits] = field(default_factory=dict)
    """By account; those without limits may be left out."""

    tls: ssl.SSLContext | None = None
    tls_verify: bool = False
    tls_timeout: float = 2.0
    tls_handshake_first: bool = False
    tls_fallback_delay: float = 0.0
    """With `tls_handshake_first`: seconds without a TLS hello after which INFO goes out in clear; 0: never."""
    tls_map: bool = False
    """The certificate says which user comes."""
    tls_pinned: frozenset[str] = frozenset()
    """SHA-256 of the public keys that may come, hex; empty: any."""
    tls_rate_limit: int = 0
    """Handshakes begun per second; 0: any number."""
    allow_non_tls: bool = False
    """Clients may stay without TLS: what they send first decides."""


class Permissions(Protocol):
    """What a user may do. Answers are cached per connection, so they must not depend on time."""

    def can_publish(self, subject: bytes) -> bool: ...

    def can_subscribe(self, subject: bytes, queue: bytes | None) -> bool: ...

    # Optional, looked up with getattr when a connection registers:
    #   can_deliver(subject: bytes, queue: bytes | None) -> bool
    #                                               a wide subscription minus denied subjects
    #   allow_responses: tuple[int, float] | None   (messages, seconds) a delivered reply subject is open


class AuthResult(Protocol):
    @property
    def account(self) -> str: ...

    @property
    def user(self) -> str: ...

    @property
    def permissions(self) -> Permissions | None: ...

    # Optional, looked up with getattr when a connection logs in:
    #   session: Session | None


class Session(Protocol):
    """What holds for one connection: limits (-1 is none), and what monitoring shows of a user with a JWT."""

    @property
    def max_subscriptions(self) -> int: ...
    @property
    def max_payload(self) -> int: ...
    @property
    def expires(self) -> float:
        """Seconds since the epoch; 0 is never."""
        ...

    @property
    def name(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...
    @property
    def jwt(self) -> str: ...
    @property
    def issuer(self) -> str: ...
    @property
    def account_name(self) -> str: ...


class Authenticator(Protocol):
    """Decides who a connection is. Raising any `AuthError`-like exception refuses it."""

    @property
    def required(self) -> bool:
        """True when a client without credentials is refused: INFO then carries `auth_required`."""
        ...

    @property
    def nonce_required(self) -> bool:
        """True when nkeys or JWTs are configured: the first INFO then carries a nonce."""
        ...

    def check(self, connect: dict[str, Any], nonce: bytes, client_ip: str = "") -> AuthResult:
        """`connect` is the decoded CONNECT object, {} for a client that sent none (no_auth_user). `nonce` is
        the text of INFO.nonce, b"" when none was sent. Raises to refuse: an attribute `text` of the exception,
        when it is a str, is the -ERR text; otherwise it is Authorization Violation. `live_text` and `live_reason`
        are for a connection that was let in before."""
        ...


class CertificateAuthenticator(Protocol):
    """One that can also tell users by their certificates (`tls_map`)."""

    def check(
        self,
        connect: dict[str, Any],
        nonce: bytes,
        client_ip: str = "",
        connection_type: str = "STANDARD",
        *,
        certificate: PeerCertificate | None = None,
        by_certificate: bool = False,
    ) -> AuthResult: ...


def by_certificate(authenticator: Authenticator) -> CertificateAuthenticator:
    return cast(CertificateAuthenticator, authenticator)


@dataclass(slots=True, frozen=True)
class OpenIdentity:
    """The identity everybody has when no authorization is configured."""

    account: str = "$G"
    user: str = ""
    permissions: Permissions | None = None


class OpenAuthenticator:
    """No authorization: credentials are accepted and ignored."""

    required = False
    nonce_required = False

    def check(self, connect: dict[str, Any], nonce: bytes, client_ip: str = "") -> OpenIdentity:
        return OpenIdentity()
