"""The JWT of an account: its limits, signing keys, revoked users, exports, imports and mappings."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from jetcluster.config.account_options import (
    AccountJetStreamOptions,
    AccountLimitOptions,
    AccountOptions,
    MappingOptions,
    PermissionOptions,
)
from jetcluster.config.claims.rights import (
    UNLIMITED,
    Rights,
    permission_problems,
    read_permissions,
    read_rights,
    subject_problems,
)
from jetcluster.config.claims.shared import (
    EVERYBODY,
    ExportClaim,
    ImportClaim,
    exports_problems,
    has_wildcards,
    imports_problems,
    mappings_problems,
    read_exports,
    read_imports,
    read_mappings,
)
from jetcluster.config.claims.token import ClaimsError, Fields, Token, decode
from jetcluster.config.nkeys import is_key
from jetcluster.model.limits import tier_replicas

_ANY = "*"


@dataclass(slots=True)
class AccountClaims:
    """The claims of one account's JWT."""

    token: Token
    limits: AccountLimitOptions
    max_imports: int
    max_exports: int
    wildcard_exports: bool
    disallow_bearer: bool
    jetstream: AccountJetStreamOptions | None
    scopes: dict[str, Rights | None]
    """Signing key -> the template of its users' rights; None: the key is not scoped."""
    revocations: dict[str, int]
    """User -> epoch second; a user JWT issued up to then is revoked."""
    default_permissions: PermissionOptions | None
    exports: list[ExportClaim] = field(default_factory=list)
    imports: list[ImportClaim] = field(default_factory=list)
    mappings: list[MappingOptions] = field(default_factory=list)
    auth_users: list[str] = field(default_factory=list)
    """With an auth callout: the users that log in without it."""
    others: list[str] = field(default_factory=list)
    """Errors in parts of the JWT that have no field here."""

    @property
    def key(self) -> str:
        return self.token.subject

    def is_revoked(self, user: str, issued_at: int) -> bool:
        return is_revoked(self.revocations, user, issued_at)

    def problem(self, now: float) -> str:
        """Returns the reason why the claims are not valid at this epoch second; "" when they are."""
        return self.token.time_problem(now) or next(self.problems(), "")

    def problems(self) -> Iterator[str]:
        """Yields the errors that do not depend on the time."""
        if not is_key("A", self.key):
            yield "expected subject to be account public key"
        yield from self.others
        yield from imports_problems(self.imports, self.key)
        yield from exports_problems(self.exports)
        if self.default_permissions is not None:
            yield from permission_problems(self.default_permissions)
        yield from mappings_problems(self.mappings)
        if 0 <= self.max_imports < len(self.imports):
            yield "the account contains more imports than allowed by the operator"
        if self.max_exports != UNLIMITED:
            if len(self.exports) > self.max_exports:
                yield "the account contains more exports than allowed by the operator"
            if not self.wildcard_exports and any(has_wildcards(export.options.subject) for export in self.exports):
                yield "the account contains wildcard exports that are not allowed by the operator"
        for key, scope in self.scopes.items():
            if not is_key("A", key):
                yield (
                    f'"{key}" is not a valid account signing key'
                    if scope is None
                    else (f"{key} is not an account public key")
                )

    def options(self) -> AccountOptions:
        """Returns the options that a configuration file would give. Imports are not yet checked for activation."""
        return AccountOptions(
            name=self.key,
            jetstream=self.jetstream,
            limits=self.limits,
            default_permissions=self.default_permissions,
            exports=[export.options for export in self.exports],
            imports=[found.options for found in self.imports],
            mappings=self.mappings,
        )


def unlimited_account(key: str, issuer: str) -> AccountClaims:
    """Returns the claims of an account whose JWT has not arrived yet."""
    token = Token("", "account", 2, issuer, key, "", "", "", 0, 0, 0, (), Fields({}), Fields({}))
    return AccountClaims(token, AccountLimitOptions(), UNLIMITED, UNLIMITED, True, False, None, {key: None}, {}, None)


def is_revoked(revocations: dict[str, int], subject: str, issued_at: int) -> bool:
    return any(name in revocations and revocations[name] >= issued_at for name in (subject, EVERYBODY))


def verified_account(key: str, text: str, issuers: Collection[str], now: float) -> AccountClaims:
    """Returns the claims of the account `key`. Raises ClaimsError unless one of `issuers` has signed them and they are
    valid at the epoch second `now`."""
    claims = decode_account(text)
    if claims.token.issuer not in issuers or claims.key != key or claims.problem(now):
        raise ClaimsError("account validation failed")
    return claims


def decode_account(text: str) -> AccountClaims:
    """Returns the claims of an account's JWT. Raises ClaimsError."""
    token = decode(text, "account")
    body = token.body
    limits = body.object("limits")
    permissions = read_permissions(body.object("default_permissions"))
    callout = body.object("authorization")
    return AccountClaims(
        token=token,
        limits=AccountLimitOptions(
            max_connections=limits.number("conn"),
            max_subscriptions=limits.number("subs"),
            max_payload=limits.number("payload"),
            max_leafnodes=limits.number("leaf"),
        ),
        max_imports=limits.number("imports"),
        max_exports=limits.number("exports"),
        wildcard_exports=limits.flag("wildcards"),
        disallow_bearer=limits.flag("disallow_bearer"),
        jetstream=_jetstream(limits) if token.version > 1 else None,
        scopes=_scopes(body, is_old=token.version == 1),
        revocations=body.numbers_by_name("revocations"),
        default_permissions=None if permissions == PermissionOptions() else permissions,
        exports=read_exports(body),
        imports=read_imports(body),
        mappings=read_mappings(body),
        auth_users=callout.texts("auth_users"),
        others=[*_callout_problems(callout), *_trace_problems(body), *_other_problems(body)],
    )


def _callout_problems(callout: Fields) -> Iterator[str]:
    users, accounts, xkey = callout.texts("auth_users"), callout.texts("allowed_accounts"), callout.text("xkey")
    if accounts and not users:
        yield "External authorization cannot have accounts without users specified"
    for user in users:
        if not is_key("U", user):
            yield f'AuthUser "{user}" is not a valid user public key'
    for account in accounts:
        if account == _ANY and len(accounts) > 1:
            yield f'AllowedAccounts can only be a list of accounts or "{_ANY}"'
        elif account != _ANY and not is_key("A", account):
            yield f'Account "{account}" is not a valid account public key'
    if xkey and not is_key("X", xkey):
        yield f'XKey "{xkey}" is not a valid public xkey'


def _trace_problems(body: Fields) -> Iterator[str]:
    if "trace" not in body:
        return
    trace = body.object("trace")
    subject, sampling = trace.text("dest"), trace.number("sampling")
    for problem in subject_problems(subject):
        yield f"the account Trace.Destination {problem}"
        break
    if has_wildcards(subject):
        yield f'the account Trace.Destination subject "{subject}" is not a valid publish subject'
    if not 0 <= sampling <= 100:
        yield f"the account Trace.Sampling value '{sampling}' is not valid, should be in the range [1..100]"


def _other_problems(body: Fields) -> Iterator[str]:
    if body.text("cluster_traffic") not in ("", "system", "owner"):
        yield f'unknown cluster traffic option: "{body.text("cluster_traffic")}"'
    if "" in body.object("limits").object("tiered_limits").names():
        yield 'Tiered JetStream Limits can not contain a blank "" tier name'


def _scopes(body: Fields, *, is_old: bool) -> dict[str, Rights | None]:
    if is_old:
        return dict.fromkeys(body.texts("signing_keys"))
    found: dict[str, Rights | None] = {}
    for item in body.items("signing_keys"):
        if isinstance(item, str):
            found[item] = None
        elif isinstance(item, dict):
            scope = Fields(item)
            if scope.text("kind") != "user_scope":
                raise ClaimsError(f'unknown signing key scope "{scope.text("kind")}"')
            found[scope.text("key")] = read_rights(scope.object("template"), UNLIMITED)
    return found


def _jetstream(limits: Fields) -> AccountJetStreamOptions | None:
    """Returns None when JetStream is off for the account."""
    tiers = limits.object("tiered_limits")
    if tiers.names():
        return _of_tiers([(name, tiers.object(name)) for name in tiers.names()])
    return _one_tier(limits)


def _one_tier(limits: Fields) -> AccountJetStreamOptions | None:
    memory, disk = limits.number("mem_storage"), limits.number("disk_storage")
    if not memory and not disk:
        return None
    return AccountJetStreamOptions(
        max_memory=memory,
        max_store=disk,
        max_streams=_or_unlimited(limits.number("streams")),
        max_consumers=_or_unlimited(limits.number("consumer")),
        max_ack_pending=_or_unlimited(limits.number("max_ack_pending")),
        memory_max_stream_bytes=_or_unlimited(limits.number("mem_max_stream_bytes")),
        store_max_stream_bytes=_or_unlimited(limits.number("disk_max_stream_bytes")),
        max_bytes_required=limits.flag("max_bytes_required"),
    )


def _of_tiers(tiers: list[tuple[str, Fields]]) -> AccountJetStreamOptions | None:
    """Returns the limits by number of replicas (`R1`, `R3`), in bytes of one replica, and those of all."""
    whole: AccountJetStreamOptions | None = None
    found: dict[str, AccountJetStreamOptions] = {}
    for name, fields in tiers:
        tier = _one_tier(fields)
        if tier is None:
            continue
        found[name] = replace(tier)
        replicas = tier_replicas(name) or 1
        tier.max_memory = tier.max_memory * replicas if tier.max_memory > 0 else tier.max_memory
        tier.max_store = tier.max_store * replicas if tier.max_store > 0 else tier.max_store
        whole = tier if whole is None else _sum(whole, tier)
    if whole is not None:
        whole.tiers = found
    return whole


def _sum(one: AccountJetStreamOptions, two: AccountJetStreamOptions) -> AccountJetStreamOptions:
    def both(name: str, of_both: Any) -> int:
        left, right = getattr(one, name), getattr(two, name)
        return UNLIMITED if UNLIMITED in (left, right) else int(of_both((left, right)))

    return AccountJetStreamOptions(
        max_memory=both("max_memory", sum),
        max_store=both("max_store", sum),
        max_streams=both("max_streams", sum),
        max_consumers=both("max_consumers", sum),
        max_ack_pending=both("max_ack_pending", max),
        memory_max_stream_bytes=both("memory_max_stream_bytes", max),
        store_max_stream_bytes=both("store_max_stream_bytes", max),
        max_bytes_required=one.max_bytes_required or two.max_bytes_required,
    )


def _or_unlimited(value: int) -> int:
    return value if value > 0 else UNLIMITED
