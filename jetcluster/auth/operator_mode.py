"""The authenticator of operator mode: it trusts a user's JWT that the account signed, whose JWT the operator signed.

Order and result of the checks are nats-server's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jetcluster.auth.authenticator import STANDARD, Authenticator, AuthError, AuthResult, Session
from jetcluster.auth.permissions import UserPermissions
from jetcluster.auth.secrets import is_signed
from jetcluster.clock import Clock
from jetcluster.config.account_options import PermissionOptions
from jetcluster.config.claims.account import AccountClaims
from jetcluster.config.claims.rights import Rights
from jetcluster.config.claims.token import ClaimsError
from jetcluster.config.claims.user import UserClaims, decode_user, filled_in
from jetcluster.config.nkeys import decode_user_key
from jetcluster.config.options import Options

MAX_CACHED_USERS = 4096
"""Users whose verified JWTs are cached."""
CONNECTION_TYPES = frozenset({"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"})


class RevokedError(AuthError):
    """The account has revoked the user's JWT."""

    live_text = "User Authentication Revoked"
    live_reason = "Credentials Revoked"


class UserExpiredError(AuthError):
    """The user's JWT is not valid at this time, or the user must not connect at this time of the day."""

    live_text = "User Authentication Expired"
    live_reason = "Authentication Expired"


class AccountExpiredError(AuthError):
    """The account's JWT has expired; another server may have a renewed one."""

    live_text = "Account Authentication Expired"
    live_reason = "Authentication Expired"

    def __init__(self, account: str) -> None:
        super().__init__("the account's JWT has expired")
        self.account = account


class IssuerError(AuthError):
    """The issuer of the user's JWT is no signing key of the account, or no longer one."""

    live_text = ""


class UnknownAccountError(AuthError):
    """The account is not known; another server may have its JWT."""

    def __init__(self, account: str) -> None:
        super().__init__(f"account {account} is not known")
        self.account = account


@dataclass(slots=True)
class _Remembered:
    """A user's JWT, and the rights and permissions by the account's claims at that time."""

    claims: UserClaims
    account: KnownAccount | None = None
    rights: Rights | None = None
    permissions: UserPermissions | None = None


class OperatorAuthenticator(Authenticator):
    """Checks logins against the accounts known at that time; users and tokens of the configuration are ignored."""

    def __init__(self, options: Options, accounts: KnownAccounts, clock: Clock) -> None:
        super().__init__(options)
        operator = options.operator
        self._accounts = accounts
        self._clock = clock
        self._keys = frozenset(operator.keys)
        self._strict_keys = frozenset(operator.strict_keys)
        self._pinned = None if operator.pinned_accounts is None else {*operator.pinned_accounts, options.system_account}
        self._sentinel = operator.default_sentinel
        self._remembered: dict[str, _Remembered] = {}

    @property
    def required(self) -> bool:
        return True

    @property
    def nonce_required(self) -> bool:
        return True

    def check(
        self,
        connect: Mapping[str, object],
        nonce: bytes,
        client_ip: str = "",
        connection_type: str = STANDARD,
        **_: object,
    ) -> AuthResult:
        """Returns the result of a login by JWT; certificates are ignored. Raises AuthError."""
        user = self._claimed(connect)
        now = self._clock.time_ns() / 1e9
        problem = user.claims.problem(now)
        if problem:
            late = user.claims.token.time_problem(now)
            raise (UserExpiredError if late else AuthError)(f"user JWT no longer valid: {problem}")
        account = self._account_of(user.claims)
        self._prepare(user, account)
        assert user.rights is not None
        if user.rights.proxy_required:
            raise AuthError("the user may only connect by a proxy, and none is trusted")
        if account.expired:
            raise AccountExpiredError(account.claims.key)
        self._check_connection(user, account, connect, nonce, connection_type)
        token = user.claims.token
        if account.claims.is_revoked(token.subject, token.issued_at):
            raise RevokedError("the user is revoked")
        if not user.rights.is_from_allowed(client_ip):
            raise AuthError(f"the user may not connect from {client_ip}")
        left = user.rights.seconds_left(now)
        if left is None:
            raise UserExpiredError("the user may not connect at this time of the day")
        return AuthResult(account.claims.key, token.subject, user.permissions, _session(user, account, now, left))

    def _claimed(self, connect: Mapping[str, object]) -> _Remembered:
        text = connect.get("jwt")
        user = self._read(text) if isinstance(text, str) and text else None
        if user is None and self._sentinel:
            user = self._read(self._sentinel)
        if user is None:
            raise AuthError("authentication requires a user JWT, and what came is none")
        return user

    def _read(self, text: str) -> _Remembered | None:
        known = self._remembered.get(text)
        if known is not None:
            return known
        try:
            user = _Remembered(decode_user(text))
        except ClaimsError:
            return None
        if len(self._remembered) >= MAX_CACHED_USERS:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[text] = user
        return user

    def _account_of(self, user: UserClaims) -> KnownAccount:
        key = user.account
        if self._pinned is not None and key not in self._pinned:
            raise AuthError(f"account {key} is not listed as operator pinned account")
        account = self._accounts.find(key)
        if account is None:
            raise UnknownAccountError(key)
        if account.claims.token.issuer not in self._keys:
            raise AuthError("account JWT is not signed by a trusted operator")
        if user.token.issuer not in account.signers(self._strict_keys):
            raise IssuerError("the issuer of the user JWT is not known")
        return account

    def _prepare(self, user: _Remembered, account: KnownAccount) -> None:
        """Sets the rights and permissions by the account's present claims. All connections of the user share them."""
        if user.account is account:
            return
        claims, rights = user.claims, user.claims.rights
        template = account.signers(self._strict_keys)[claims.token.issuer]
        if template is not None:
            if not rights.is_blank:
                raise AuthError("scoped users require no permissions or limits set")
            if not claims.issuer_account:
                raise AuthError("a scoped user names its account")
            of_account = account.claims.token
            try:
                rights = filled_in(template, claims, of_account.name, of_account.tags)
            except ClaimsError as error:
                raise AuthError(f"the user's template cannot be filled in: {error}") from error
        permissions: PermissionOptions | None = rights.permissions
        if permissions == PermissionOptions():
            permissions = account.claims.default_permissions
        user.permissions = None if permissions is None else UserPermissions(permissions)
        user.rights, user.account = rights, account

    def _check_connection(
        self,
        user: _Remembered,
        account: KnownAccount,
        connect: Mapping[str, object],
        nonce: bytes,
        connection_type: str,
    ) -> None:
        rights, token = user.rights, user.claims.token
        assert rights is not None
        if rights.bearer and account.claims.disallow_bearer:
            raise AuthError("the account does not allow bearer tokens")
        types = {text.upper() for text in rights.connection_types}
        # An unknown type allows nothing; an empty list allows everything.
        if types and connection_type not in types & CONNECTION_TYPES:
            raise AuthError("the user may not use this type of connection")
        if account.claims.auth_users and token.subject not in account.claims.auth_users:
            # The account delegates the decision, so it must not be made without the delegate.
            raise AuthError("the account has an auth callout, which this server does not have")
        if rights.bearer:
            return
        signature = connect.get("sig")
        if not nonce or not isinstance(signature, str) or not signature:
            raise AuthError("signature missing")
        try:
            key = decode_user_key(token.subject)
        except ValueError as error:
            raise AuthError(f"user nkey not valid: {error}") from error
        if not is_signed(key, nonce, signature):
            raise AuthError("signature not verified")


def _session(user: _Remembered, account: KnownAccount, now: float, left: float) -> Session:
    assert user.rights is not None
    token = user.claims.token
    ends = [float(token.expires)] if token.expires else []
    if left:
        ends.append(now + left)
    return Session(
        max_subscriptions=user.rights.subscriptions,
        max_payload=user.rights.payload,
        expires=min(ends, default=0.0),
        name=token.name,
        tags=token.tags,
        jwt="" if user.rights.bearer else token.text,
        issuer=token.issuer,
        account_name=account.claims.token.name,
    )


@dataclass(slots=True)
class KnownAccount:
    """An account whose JWT this server has verified."""

    claims: AccountClaims
    updated_ns: int
    """Time at which these claims were adopted, nanoseconds since the epoch."""
    expired: bool = False
    """The claims have expired or the account was removed; logins are refused."""
    removed: bool = False

    def signers(self, strict_keys: Collection[str]) -> Mapping[str, Rights | None]:
        """Returns the keys that may sign users -> the template of a scoped one, or None."""
        if self.claims.token.issuer in strict_keys:
            return self.claims.scopes
        return {**self.claims.scopes, self.claims.key: None}


class KnownAccounts:
    """Accounts by public key."""

    def __init__(self) -> None:
        self.by_key: dict[str, KnownAccount] = {}

    def find(self, key: str) -> KnownAccount | None:
        return self.by_key.get(key)
