"""`Options`: all settings of a server process, from the flags and the configuration file together.

Plain slotted dataclasses: the reader checks every type before it assigns. Sizes are bytes, times are seconds, defaults
are nats-server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final

from jetcluster.config.account_options import AccountOptions, AuthorizationOptions, MappingOptions, UserOptions
from jetcluster.config.feature_flags import ACK_V2
from jetcluster.config.tls_options import TlsOptions
from jetcluster.records import dataclass

if TYPE_CHECKING:
    from jetcluster.config.claims.operator import OperatorClaims

MEMORY, FULL, CACHE, URL = "memory", "full", "cache", "url"


@dataclass(slots=True)
class ResolverOptions:
    """The source of account JWTs: `full` keeps all of them in a directory, `cache` the ones that were requested; `url`
    asks a web server; `memory` has only the preloaded ones."""

    kind: str = MEMORY
    directory: str = ""
    url: str = ""
    allow_delete: bool = False
    hard_delete: bool = False
    """A deleted account's file is removed, not renamed."""
    limit: int = 0
    """JWTs in the directory; 0: no limit for `full`, 1000 for `cache`."""
    interval: float = 60.0
    """Seconds between two comparisons of the directory with the other servers'."""
    ttl: float = 0.0
    """Seconds that `cache` keeps a JWT; 0: as long as it is valid."""
    timeout: float = 1.9
    """Seconds that other servers have to answer a request for an account."""


@dataclass(slots=True)
class OperatorOptions:
    """Operator mode: the keys that sign accounts, and the source of the accounts' JWTs."""

    operators: list[OperatorClaims] = field(default_factory=list)
    trusted_keys: list[str] = field(default_factory=list)
    """Public operator nkeys, in place of operators' JWTs."""
    resolver: ResolverOptions | None = None
    resolver_tls: TlsOptions | None = None
    """TLS to the web server of a `url` resolver; None: the system's authorities check https."""
    preload: dict[str, str] = field(default_factory=dict)
    """Account -> its JWT."""
    pinned_accounts: list[str] | None = None
    """Accounts whose users may log in; None: all."""
    default_sentinel: str = field(default="", repr=False)
    """A bearer's user JWT, for clients that send no JWT."""

    @property
    def is_on(self) -> bool:
        return bool(self.operators or self.trusted_keys)

    @property
    def tokens(self) -> list[str]:
        """The operators' JWTs."""
        return [operator.token.text for operator in self.operators]

    @property
    def keys(self) -> list[str]:
        """All keys that may sign accounts."""
        return [*self.trusted_keys, *(key for operator in self.operators for key in operator.keys)]

    @property
    def strict_keys(self) -> list[str]:
        """The keys of operators with strict signing: an account that one of them signed must sign its users with its
        signing keys."""
        return [key for operator in self.operators if operator.strict_signing_keys for key in operator.signing_keys]


@dataclass(slots=True)
class CompatOptions:
    """The `compat` block: the points in which the specification and nats-server differ, and which of the two this
    server follows in each.

    The defaults are the behaviour that stock clients rely on, and the specification's where clients accept both. A
    choice takes effect where a request is received or an answer is rendered, never in apply: replicas must compute the
    same result whatever their configurations (docs/compatibility.md).
    """

    ack_policy: str = "none"
    """The ack policy of a consumer that is created without one: "none" or "explicit"."""
    batch_msg_id: str = "deduplicate"
    """Nats-Msg-Id in an atomic batch: "deduplicate" (a duplicate refuses the batch with 10201) or "refuse" (10177)."""
    auto_allow_direct: bool = True
    """max_msgs_per_subject above 0 turns allow_direct on."""
    up_to_time: str = "inclusive"
    """A multi-get's `up_to_time` includes a message of exactly that time ("inclusive") or not ("exclusive")."""
    seed_error_codes: bool = False
    """API errors have the specification's numbers, not nats-server's."""
    empty_policy: str = "absent"
    """A consumer's policy that is "" or `null` counts as "absent", or the server must "refuse" the request (10025)."""
    duplicate_window_max: bool = False
    """`limits` in the reply of `$JS.API.INFO` has that field."""


PRESETS: Final = {
    "seeds": CompatOptions(
        ack_policy="explicit",
        batch_msg_id="refuse",
        auto_allow_direct=True,
        up_to_time="inclusive",
        seed_error_codes=True,
        empty_policy="absent",
        duplicate_window_max=True,
    ),
    "nats-server": CompatOptions(auto_allow_direct=False, up_to_time="exclusive", empty_policy="refuse"),
}
"""Values of the whole block: the specification's, and those of nats-server 2.15.2."""

DEFAULT_PORT = 4222
MIN_LAME_DUCK_SECONDS = 30.0
LARGE_PAYLOAD_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class JetStreamOptions:
    """The `jetstream` block; a limit of 0 is the server's default."""

    enabled: bool = False
    store_dir: str = ""
    """As configured; the server appends `/jetstream`. Empty: a directory under the system's temporary one."""
    encryption_key: str = ""
    """Not "": the store is encrypted at rest."""
    prev_encryption_key: str = ""
    """The key before, which may still be the store's."""
    cipher: str = "chachapoly"
    """For what is written from now on: "chachapoly" or "aes"."""
    domain: str = ""
    max_memory_store: int = -1
    """-1: 75% of the machine's memory."""
    max_file_store: int = -1
    """-1: 75% of the free disk."""
    sync_interval: float | None = None
    """None (the default, and "always"): fsync before every ack. A duration relaxes it."""
    read_lease: float = 0.3
    """Seconds for which voters promise a leader that is read from to elect nobody else; 0: no leases."""
    max_clock_drift: float = 0.1
    """Share by which a server's clock may run fast or slow."""
    strict: bool = False
    set_aside_removed: bool = False
    """A store that the cluster has removed is moved away, and the server joins as a new member."""
    unique_tag: str = ""
    """A prefix in lower case: no two replicas of a stream are placed on servers that share a tag with this prefix."""
    balance_leaders: bool = True
    """As the meta leader this server spreads leaders of streams and owners of consumers over the servers."""
    balance_replicas: bool = True
    max_buffered_size: int = 0
    max_buffered_msgs: int = 0
    request_queue_limit: int = 0
    max_ack_pending: int = 0
    max_ha_assets: int = 0
    max_request_batch: int = 0
    duplicate_window: float = 0.0
    default_max_consumers: int = 0
    """For a stream without max_consumers of its own; 0 and below: no limit."""
    max_batch_inflight_per_stream: int = 0
    max_batch_inflight_total: int = 0
    max_batch_size: int = 0
    max_batch_timeout: float = 0.0
    max_object_uploads: int = 0
    """Uploads of the object service (docs/objects.md) at the same time."""
    object_idle_timeout: float = 0.0
    batch_allow_msg_id: bool | None = None
    """A key of this server, which overrides `compat { batch_msg_id }`; None: not given."""


@dataclass(slots=True)
class ClusterOptions:
    """The `cluster` block."""

    name: str = ""
    host: str = "0.0.0.0"  # noqa: S104 - nats-server's default
    port: int = 0
    """0: not clustered; -1: random."""
    routes: list[str] = field(default_factory=list)
    """URLs as written: `nats://[user:password@]host:port` or `nats-route://...`."""
    authorization: AuthorizationOptions = field(default_factory=AuthorizationOptions)
    cluster_advertise: str = ""
    no_advertise: bool = False
    compression: str = ""
    tls: TlsOptions | None = None
    """Both ends of a route show certificates and check them."""
    trusted_network: bool = False
    """Nodes on other machines may join although there is neither authorization nor TLS."""


@dataclass(slots=True)
class LeafUserOptions:
    """A user that may connect as a leaf, and its account. One with an nkey has no `user` and signs the nonce."""

    user: str
    password: str
    account: str = "$G"
    nkey: str = ""


@dataclass(slots=True)
class LeafRemoteOptions:
    """One account's link to a hub."""

    urls: list[str] = field(default_factory=list)
    """`nats-leaf://[user:password@ | token@]host:port`; `tls://...` asks for TLS."""
    account: str = "$G"
    credentials: str = ""
    """Path of a file with a user JWT and the seed of its nkey."""
    nkey: str = field(default="", repr=False)
    """Seed of a user nkey."""
    tls: TlsOptions | None = None
    """None: the system's authorities check TLS, if a URL or the hub requires TLS."""
    hub: bool = False
    """This end acts as the hub although it is the connecting one."""
    deny_imports: list[str] = field(default_factory=list)
    deny_exports: list[str] = field(default_factory=list)
    no_randomize: bool = False
    ignore_discovered_servers: bool = False
    disabled: bool = False
    dial_timeout: float = 0.0
    """0: that of the `leafnodes` block."""
    first_info_timeout: float = 0.0


@dataclass(slots=True)
class LeafOptions:
    """The `leafnodes` block."""

    host: str = "0.0.0.0"  # noqa: S104 - nats-server's default
    port: int = 0
    """0: no leaf is accepted; -1: random."""
    users: list[LeafUserOptions] = field(default_factory=list)
    """Empty: leaves log in as clients do."""
    auth_timeout: float = 2.0
    advertise: str = ""
    no_advertise: bool = False
    reconnect: float = 1.0
    dial_timeout: float = 0.0
    """Seconds that connecting to a hub may take; 0: the server's default."""
    min_version: str = ""
    """The oldest version of a leaf that may connect; empty: any."""
    compression: str = ""
    ping_interval: float = 0.0
    """Seconds; 0: the server's, at most 10."""
    ping_max: int = 0
    """0: the server's."""
    remotes: list[LeafRemoteOptions] = field(default_factory=list)
    tls: TlsOptions | None = None


@dataclass(slots=True)
class WebSocketOptions:
    """The `websocket` block: a port for clients that send WebSocket frames."""

    host: str = "0.0.0.0"  # noqa: S104 - nats-server's default
    port: int = 0
    """0: none; -1: random."""
    tls: TlsOptions | None = None
    no_tls: bool = False
    """The port has no TLS on purpose; either this or `tls` must be given."""
    same_origin: bool = False
    allowed_origins: list[str] = field(default_factory=list)
    """Empty: any."""
    handshake_timeout: float = 0.0
    """0: the server's default."""
    compression: bool = False
    authorization: AuthorizationOptions = field(default_factory=AuthorizationOptions)
    """A user and password or a token for this port, in place of the server's."""
    no_auth_user: str = ""
    jwt_cookie: str = ""
    user_cookie: str = ""
    pass_cookie: str = ""
    token_cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """HTTP headers added to the response of the handshake."""
    advertise: str = ""
    ping_interval: float = 0.0
    """0: the server's own ping interval."""

    @property
    def overrides_login(self) -> bool:
        return bool(self.authorization.user or self.authorization.token or self.no_auth_user)


@dataclass(slots=True, frozen=True)
class WorkerOptions:
    """The place of this process among the workers of its machine (`config.workers`), from their supervisor."""

    index: int
    """From 0; worker 0 is the server that a single process would be."""
    count: int
    machine: str
    """The name of worker 0, by which placement knows the machine."""
    cluster_ports: tuple[int, ...]
    """Where each worker listens for other nodes."""
    route: str
    """host:port at which the others reach worker 0."""
    ports: Mapping[str, int]
    """The ports that all workers share, by kind: "client", "http", "websocket", "leafnodes"."""
    secret: str = field(default="", repr=False)
    """The password of the routes where the workers are the whole cluster; "" where a cluster is configured."""
    link: int = -1
    """File descriptor of the socket to the supervisor."""

    @property
    def alone(self) -> bool:
        """True when no other machine belongs to the cluster."""
        return bool(self.secret)


@dataclass(slots=True)
class Options:
    """The top level of the configuration, and its blocks."""

    config_file: str = ""
    config_digest: str = ""
    """`sha256:<hex>`, see `load.config_digest`."""
    server_name: str = ""
    """Empty: the server id is the name."""
    host: str = "0.0.0.0"  # noqa: S104 - nats-server's default; `-a` narrows it
    port: int = DEFAULT_PORT
    client_advertise: str = ""
    http_host: str = ""
    """Empty: the client listener's host."""
    https_port: int = 0
    """Monitoring over TLS with the certificate of `tls`, in place of `http_port`. 0: no; -1: random."""
    https_verify: bool = False
    """A key of this server: clients of the monitoring must show a certificate that `tls.ca_file` signed."""
    http_port: int = 0
    """0: no monitoring; -1: random."""
    http_base_path: str = ""
    console: bool = False
    console_hosts: list[str] = field(default_factory=list)
    """Names by which browsers reach a console that asks for no login."""
    server_tags: list[str] = field(default_factory=list)
    zone_tag: str = "zone:"
    """The prefix of the tags that name a server's zone; "": there are no zones."""
    server_metadata: dict[str, str] = field(default_factory=dict)
    feature_flags: dict[str, bool] = field(default_factory=dict)
    """As the configuration has them; only `js_ack_fc_v2` switches anything."""
    no_header_support: bool = False
    pid_file: str = ""
    ports_file_dir: str = ""
    workers: int = 1
    """Processes that serve this machine's ports together; 0: one per core (`config.workers`)."""
    worker: WorkerOptions | None = None
    """None in a server of one process, and in the supervisor of workers."""

    max_payload: int = 1024 * 1024
    max_control_line: int = 4096
    max_connections: int = 65536
    max_subscriptions: int = 0
    max_sub_tokens: int = 0
    max_pending: int = 64 * 1024 * 1024
    max_closed_clients: int = 10_000
    ping_interval: float = 120.0
    ping_max: int = 2
    write_deadline: float = 10.0
    write_timeout: str = "default"
    """"close" or "retry", for a client whose socket has accepted no bytes for `write_deadline`."""
    no_fast_producer_stall: bool = False
    lame_duck_duration: float = 120.0
    lame_duck_grace_period: float = 10.0

    debug: bool = False
    trace: bool = False
    trace_verbose: bool = False
    """Clients of the system account are traced too."""
    trace_headers: bool = False
    """Only the headers of messages are traced, not their payloads."""
    max_traced_msg_len: int = 0
    """Bytes of a payload that are shown; 0: all."""
    logtime: bool = True
    logtime_utc: bool = False
    log_file: str = ""
    log_size_limit: int = 0
    """Bytes after which the log file is rotated; 0: never."""
    log_max_num: int = 0
    """Log files that are kept, the one in use included; 0: all."""
    syslog: bool = False
    remote_syslog: str = ""
    """`udp://host:port`, `tcp://host:port` or `unix:///path`."""
    log_format: str = "text"
    """"text" is nats-server's line format, "json" one object per line."""

    authorization: AuthorizationOptions = field(default_factory=AuthorizationOptions)
    accounts: dict[str, AccountOptions] | None = None
    """None: there is no `accounts` block; all clients are in `$G`, which has JetStream."""
    mappings: list[MappingOptions] = field(default_factory=list)
    """Mappings of the account `$G`."""
    no_auth_user: str = ""
    system_account: str = ""
    """Empty: `$SYS`."""
    operator: OperatorOptions = field(default_factory=OperatorOptions)
    tls: TlsOptions | None = None
    allow_non_tls: bool = False

    jetstream: JetStreamOptions = field(default_factory=JetStreamOptions)
    compat: CompatOptions = field(default_factory=CompatOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    leafnodes: LeafOptions = field(default_factory=LeafOptions)
    websocket: WebSocketOptions = field(default_factory=WebSocketOptions)

    warnings: list[str] = field(default_factory=list)
    """Logged after logging has started: keys without effect, a relaxed sync_interval, doubtful values."""
    inert: list[str] = field(default_factory=list)
    """Keys and flags that were given and have no effect, as the warning shows them."""

    @property
    def auth_timeout(self) -> float:
        """Seconds until a client must have sent its CONNECT (with TLS: those of the handshake, and one more)."""
        if self.authorization.timeout:
            return self.authorization.timeout
        return self.tls.timeout + 1.0 if self.tls else 2.0

    @property
    def domain(self) -> str:
        return self.jetstream.domain

    @property
    def cluster_name(self) -> str:
        return self.cluster.name

    @property
    def no_advertise(self) -> bool:
        return self.cluster.no_advertise

    @property
    def is_clustered(self) -> bool:
        return self.cluster.port != 0

    @property
    def ack_v2(self) -> bool:
        """True when deliveries have reply subjects of version 2 (`consumer.owner.ack_subject`)."""
        return self.feature_flags.get(ACK_V2, False)

    @property
    def system_account_name(self) -> str:
        return self.system_account or "$SYS"

    @property
    def global_only(self) -> bool:
        """True when the only configured account is the system account: then `$G` has JetStream."""
        return self.accounts is None or (not self.operator.is_on and self.accounts.keys() <= {self.system_account_name})

    @property
    def global_is_open(self) -> bool:
        """True when only the system account is configured: clients without credentials are in `$G`, wrong credentials
        are refused. An `authorization` block or no_auth_user turns that off."""
        auth = self.authorization
        if not self.accounts or not self.global_only:
            return False
        return not (self.no_auth_user or auth.given or auth.user or auth.token)

    def has_jetstream(self, account: str) -> bool:
        """Returns True when the account may use JetStream, provided that the server has it."""
        found = (self.accounts or {}).get(account)
        return (found is not None and found.jetstream is not None) or (account == "$G" and self.global_only)

    @property
    def shares(self) -> bool:
        """True when an account imports subjects or maps them."""
        return bool(self.mappings) or any(a.imports or a.mappings for a in (self.accounts or {}).values())

    def users_by_name(self) -> dict[str, UserOptions]:
        """Returns all configured users and nkey users by the name that `no_auth_user` would use."""
        found = {user.user or user.nkey: user for user in self.authorization.users}
        for account in (self.accounts or {}).values():
            found.update({user.user or user.nkey: user for user in account.users})
        return found

    def add_inert(self, names: Iterable[str]) -> None:
        """Adds keys or flags that were given and have no effect; one warning names all of them."""
        self.inert += names

    def add_start_warnings(self) -> None:
        """Appends the warnings about the final values, flags included."""
        if self.inert:
            self.warnings.append(f"Accepted, but without effect in this version: {', '.join(self.inert)}")
        sync_interval = self.jetstream.sync_interval
        if self.jetstream.enabled and sync_interval is not None:
            self.warnings.append(
                f"jetstream sync_interval is {sync_interval:g}s: acknowledged messages of that time can be lost when "
                'power fails; leave it out, or say "always", to fsync before every ack'
            )
        if self.max_payload > LARGE_PAYLOAD_BYTES:
            self.warnings.append(
                "Maximum payloads over 8.00 MB are generally discouraged and could lead to poor performance"
            )
        if self.console and not (self.http_port or self.https_port):
            self.warnings.append("console has no effect without http_port or https_port")
        if self.is_clustered and not self.cluster.name:
            self.warnings.append("Cluster name was dynamically generated, consider setting one")
