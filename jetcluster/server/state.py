"""`ServerState`: what all parts of a server go by, and what they count in common. It holds no part of it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.config.account_options import AccountLimitOptions
from jetcluster.config.options import Options
from jetcluster.records import dataclass

if TYPE_CHECKING:
    import ssl

    from jetcluster.auth.authenticator import Authenticator
    from jetcluster.server.tracing import Tracer

_NO_LIMITS: Final = AccountLimitOptions()


@dataclass(slots=True)
class ServerState:
    """A reload replaces `options`, `authenticator`, `tls` and `tracer`: who needs them asks here each time."""

    options: Options
    """The server's own: the node's change in place before `Server.reconfigure` brings the new ones."""
    authenticator: Authenticator
    clock: Clock
    rng: Rng
    timers: Timers
    """The event loop outside tests."""
    server_id: str
    name: str
    start_ns: int
    """Nanoseconds since the epoch."""
    host: str
    """The address that is bound, once it is: `options.host` may be a name."""
    port: int
    tls: ssl.SSLContext | None = None
    """The client port's, made of `options.tls`."""
    tracer: Tracer | None = None
    """None: nothing is traced."""
    lame_duck: bool = False
    stopping: bool = False
    peer_urls: list[str] = field(default_factory=list)
    """`host:port` for clients of the other nodes."""
    slow_consumers: int = 0
    """Connections that did not read what they were sent."""
    stale_connections: int = 0
    stalled_clients: int = 0

    def limits_of(self, account: str) -> AccountLimitOptions:
        """The limits of an account, which has none if it is not configured."""
        found = (self.options.accounts or {}).get(account)
        return _NO_LIMITS if found is None else found.limits
