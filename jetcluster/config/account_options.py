"""Options of accounts and their users: limits, permissions, logins, exports, imports and subject mappings.

They come from a configuration file or from the claims of a JWT (`claims`); `import_rules.settle` refuses exports and
imports that are not valid. Subjects are as written, `$1` and `{{wildcard(1)}}` included. Times are seconds.
"""

from __future__ import annotations

from dataclasses import field

from jetcluster.records import dataclass

STREAM = "stream"
SERVICE = "service"
SINGLETON = "singleton"
STREAMED = "stream"
CHUNKED = "chunked"
DEFAULT_THRESHOLD_SECONDS = 120.0
"""Seconds in which a response may come, for an export without a threshold."""


@dataclass(slots=True)
class LatencyOptions:
    """Latency measurements of a service, published to `subject` in the exporting account."""

    subject: str
    sampling: int = 100
    """Per cent of the requests, 1 to 100; 0: only requests whose tracing headers ask for it."""


@dataclass(slots=True)
class ExportOptions:
    """One export of an account. `kind` is STREAM or SERVICE."""

    kind: str
    subject: str
    accounts: list[str] | None = None
    """Names of the accounts that may import it; None or empty: all of them."""
    token_required: bool = False
    """Imports need an activation token (JWT), see `ImportOptions.activated`."""
    account_token_position: int = 0
    """Position, counted from 1, of the token that must be the importing account's name; 0: none."""
    response_type: str = SINGLETON
    """SINGLETON: one response; STREAMED and CHUNKED: responses until an empty one."""
    response_threshold: float = 0.0
    """Seconds after the request or the last response in which responses are forwarded; 0: the default."""
    latency: LatencyOptions | None = None
    allow_trace: bool = False
    name: str = ""
    """A description, which only JWTs have."""

    @property
    def patience(self) -> float:
        return self.response_threshold or DEFAULT_THRESHOLD_SECONDS


@dataclass(slots=True)
class ImportOptions:
    """One import of an account: `subject` of `account`, known here as `local`."""

    kind: str
    account: str
    """The exporting account."""
    subject: str
    local: str = ""
    """`to` of the configuration, or its prefix and the subject; empty: the subject."""
    prefix: str = ""
    """The prefix of a stream import as written; `local` includes it already. For error texts."""
    share: bool = False
    """The exporter of a service gets all information about the requesting client."""
    allow_trace: bool = False
    activated: bool = False
    """A valid activation token came with the import (JWT); the reader of the claims has checked it."""
    name: str = ""

    @property
    def here(self) -> str:
        return self.local or self.subject


@dataclass(slots=True)
class MappingDestination:
    """One destination of a mapping."""

    subject: str
    weight: int = 100
    """Per cent of the messages, 0 to 100."""
    cluster: str = ""
    """Name of the cluster in which it applies; empty: all clusters without destinations of their own."""


@dataclass(slots=True)
class MappingOptions:
    """A mapping: a message that a client publishes to `source` goes to one of `destinations`. If their weights are
    below 100 per cent, the remaining messages keep their subject."""

    source: str
    destinations: list[MappingDestination] = field(default_factory=list)


@dataclass(slots=True)
class ResponseOptions:
    """`allow_responses`: how often and how many seconds long a user may publish to a reply subject it received."""

    max_messages: int = 1
    expires: float = 120.0


@dataclass(slots=True)
class SubjectLists:
    """Allowed and denied subjects; None: no list. An empty allow list allows nothing. Entries of a subscribe list may
    be "subject queue"."""

    allow: list[str] | None = None
    deny: list[str] | None = None


@dataclass(slots=True)
class PermissionOptions:
    """Permissions of a user."""

    publish: SubjectLists = field(default_factory=SubjectLists)
    subscribe: SubjectLists = field(default_factory=SubjectLists)
    responses: ResponseOptions | None = None


@dataclass(slots=True)
class UserOptions:
    """A user with a password, or with an nkey and an empty `user`."""

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
    """The configuration has the block, even an empty one."""
    user: str = ""
    password: str = ""
    token: str = ""
    timeout: float = 0.0
    """0: the server's default."""
    users: list[UserOptions] = field(default_factory=list)
    default_permissions: PermissionOptions | None = None


@dataclass(slots=True)
class AccountJetStreamOptions:
    """JetStream limits of an account; -1 is unlimited."""

    max_memory: int = -1
    max_store: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    store_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    tiers: dict[str, AccountJetStreamOptions] | None = None
    """Limits by `R<replicas>` from an account's JWT, in bytes of one replica. The fields above then apply to all tiers
    together and count every replica."""


@dataclass(slots=True)
class AccountLimitOptions:
    """Limits of an account's connections; -1 is unlimited."""

    max_connections: int = -1
    max_subscriptions: int = -1
    max_payload: int = -1
    max_leafnodes: int = -1


@dataclass(slots=True)
class AccountOptions:
    """One account."""

    name: str
    nkey: str = ""
    users: list[UserOptions] = field(default_factory=list)
    jetstream: AccountJetStreamOptions | None = None
    """None: JetStream is off, API requests get 503/10039."""
    limits: AccountLimitOptions = field(default_factory=AccountLimitOptions)
    default_permissions: PermissionOptions | None = None
    exports: list[ExportOptions] = field(default_factory=list)
    imports: list[ImportOptions] = field(default_factory=list)
    mappings: list[MappingOptions] = field(default_factory=list)
