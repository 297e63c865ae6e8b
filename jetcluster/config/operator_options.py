"""Operator mode: whom to believe about accounts, and where their JWTs come from.

Rules and texts are nats-server's.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from jetcluster.records import dataclass

if TYPE_CHECKING:
    from jetcluster.config.claims.operator import OperatorClaims
    from jetcluster.config.tls_options import TlsOptions

MEMORY, FULL, CACHE, URL = "memory", "full", "cache", "url"


@dataclass(slots=True)
class ResolverOptions:
    """`full` keeps the JWTs of all accounts in a directory, `cache` those that were asked for, `url` asks a web
    server."""

    kind: str = MEMORY
    directory: str = ""
    url: str = ""
    allow_delete: bool = False
    hard_delete: bool = False
    """A deleted account's file is removed, not renamed."""
    limit: int = 0
    """JWTs in the directory; 0: no limit of `full`, 1000 of `cache`."""
    interval: float = 60.0
    """Seconds between two comparisons with the other servers."""
    ttl: float = 0.0
    """Seconds that `cache` keeps a JWT; 0: as long as it is valid."""
    timeout: float = 1.9
    """Seconds that others have to answer a question for an account."""


@dataclass(slots=True)
class OperatorOptions:
    operators: list[OperatorClaims] = field(default_factory=list)
    trusted_keys: list[str] = field(default_factory=list)
    """In place of operators' JWTs."""
    resolver: ResolverOptions | None = None
    resolver_tls: TlsOptions | None = None
    """TLS to the web server of a `url` resolver; None: https is checked with the system's authorities."""
    preload: dict[str, str] = field(default_factory=dict)
    """Account -> its JWT."""
    pinned_accounts: list[str] | None = None
    """Only users of these may log in; None: of all."""
    default_sentinel: str = field(default="", repr=False)
    """The JWT of a bearer: who a client without a JWT is."""

    @property
    def is_on(self) -> bool:
        return bool(self.operators or self.trusted_keys)

    @property
    def keys(self) -> list[str]:
        """All that may sign accounts."""
        return [*self.trusted_keys, *(key for operator in self.operators for key in operator.keys)]

    @property
    def strict_keys(self) -> list[str]:
        """The keys of operators with strict signing: accounts signed by one have users by signing keys only."""
        return [key for operator in self.operators if operator.strict_signing_keys for key in operator.signing_keys]
