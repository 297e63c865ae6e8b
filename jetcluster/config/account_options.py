"""Options of accounts and their users: limits, permissions, logins, exports, imports and subject mappings.

They stand in a configuration file, and claims of JWTs (`claims`) are made of them as well; `import_rules.settle` says
which exports and imports cannot stand. Subjects are as written, `$1` and `{{wildcard(1)}}` included. Times are seconds.
"""

from __future__ import annotations

from dataclasses import field

from jetcluster.records import dataclass

STREAM = "stream"
SERVICE = "service"
SINGLETON = "singleton"
STREAMED = "stream"
CHUNKED = "chunked"
DEFAULT_THRESHOLD = 120.0
"""Seconds that a response has when an export does not say it."""


@dataclass(slots=True)
class LatencyOptions:
    """Where measurements of a service go: `subject` in the exporting account."""

    subject: str
    sampling: int = 100
    """Per cent of the requests, 1 to 100; 0: only requests with tracing headers that ask for it."""


@dataclass(slots=True)
class ExportOptions:
    """One export of an account. `kind` is STREAM or SERVICE."""

    kind: str
    subject: str
    accounts: list[str] | None = None
    """Names of the accounts that may import it; None or empty: all of them."""
    token_required: bool = False
    """An import needs an activation token (JWT): only imports that are `activated` stand."""
    account_token_position: int = 0
    """Which token of the subject, counted from 1, must be the importing account's name; 0: none."""
    response_type: str = SINGLETON
    """SINGLETON: one response; STREAMED and CHUNKED: until an empty one."""
    response_threshold: float = 0.0
    """Seconds after the request or the last response in which responses are let through; 0: DEFAULT_THRESHOLD."""
    latency: LatencyOptions | None = None
    allow_trace: bool = False
    name: str = ""
    """For people; JWTs have one."""

    @property
    def patience(self) -> float:
        return self.response_threshold or DEFAULT_THRESHOLD


@dataclass(slots=True)
class ImportOptions:
    """One import of an account: `subject` of `account`, known here as `local`."""

    kind: str
    account: str
    """The exporting account."""
    subject: str
    local: str = ""
    """`to` of the configuration, or its prefix with the subject; empty: the subject."""
    prefix: str = ""
    """The prefix of a stream import as written, which `local` is made with. For the texts of errors."""
    share: bool = False
    """The exporter of a service learns everything about the client that asks."""
    allow_trace: bool = False
    activated: bool = False
    """A valid activation token came with it (JWT); checked by the reader that made this object."""
    name: str = ""

    @property
    def here(self) -> str:
        return self.local or self.subject


@dataclass(slots=True)
class MappingDestination:
    subject: str
    weight: int = 100
    """Per cent of the messages, 0 to 100."""
    cluster: str = ""
    """Only in the cluster of this name; empty: everywhere else."""


@dataclass(slots=True)
class MappingOptions:
    """A mapping: a message that a client publishes to `source` goes to one of `destinations`; below 100 per cent, the
    rest keeps its subject."""

    source: str
    destinations: list[MappingDestination] = field(default_factory=list)


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
