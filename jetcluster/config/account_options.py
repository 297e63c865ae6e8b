"""Options of accounts and their users: limits, permissions, and the ways to log in.

They stand in a configuration file, and claims of JWTs (`claims`) are made of them as well.
"""

from __future__ import annotations

from dataclasses import field

from jetcluster.config.sharing import ExportOptions, ImportOptions, MappingOptions
from jetcluster.records import dataclass


@dataclass(slots=True)
class ResponseOptions:
    """`allow_responses`: how often and how long a reply subject that was delivered to a user may be published to."""

    max_messages: int = 1
    expires: float = 120.0


@dataclass(slots=True)
class SubjectLists:
    """None = no list. An empty allow list allows nothing; entries of a subscribe list may be "subject queue"."""

    allow: list[str] | None = None
    deny: list[str] | None = None


@dataclass(slots=True)
class PermissionOptions:
    publish: SubjectLists = field(default_factory=SubjectLists)
    subscribe: SubjectLists = field(default_factory=SubjectLists)
    responses: ResponseOptions | None = None


@dataclass(slots=True)
class UserOptions:
    """A user with a password or an nkey (then `user` is empty)."""

    user: str = ""
    password: str = ""
    nkey: str = ""
    account: str = "$G"
    permissions: PermissionOptions | None = None
    connection_types: list[str] = field(default_factory=list)
    """Upper case; empty allows all."""


@dataclass(slots=True)
class AuthorizationOptions:
    """A top-level or cluster `authorization` block."""

    given: bool = False
    """There is such a block, also an empty one."""
    user: str = ""
    password: str = ""
    token: str = ""
    timeout: float = 0.0
    """0: the server's default."""
    users: list[UserOptions] = field(default_factory=list)
    default_permissions: PermissionOptions | None = None


@dataclass(slots=True)
class AccountJetStreamOptions:
    """-1 is unlimited."""

    max_memory: int = -1
    max_store: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    store_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    tiers: dict[str, AccountJetStreamOptions] | None = None
    """By `R<replicas>`, of an account's JWT: the bytes are those of one replica. The fields above are then of all tiers
    together, every replica counted."""


@dataclass(slots=True)
class AccountLimitOptions:
    """-1 is unlimited."""

    max_connections: int = -1
    max_subscriptions: int = -1
    max_payload: int = -1
    max_leafnodes: int = -1


@dataclass(slots=True)
class AccountOptions:
    name: str
    nkey: str = ""
    users: list[UserOptions] = field(default_factory=list)
    jetstream: AccountJetStreamOptions | None = None
    """None: not enabled, API requests get 503/10039."""
    limits: AccountLimitOptions = field(default_factory=AccountLimitOptions)
    default_permissions: PermissionOptions | None = None
    exports: list[ExportOptions] = field(default_factory=list)
    imports: list[ImportOptions] = field(default_factory=list)
    mappings: list[MappingOptions] = field(default_factory=list)
