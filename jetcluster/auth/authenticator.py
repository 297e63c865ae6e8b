"""The authenticator: finds the account, the user and the permissions for the options of a CONNECT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from jetcluster.auth.permissions import UserPermissions
from jetcluster.auth.secrets import PasswordChecker, SlowPart, is_signed
from jetcluster.clock import Rng
from jetcluster.config.account_options import PermissionOptions, UserOptions
from jetcluster.config.nkeys import decode_user_key
from jetcluster.config.options import Options
from jetcluster.errors import CallerError
from jetcluster.records import dataclass

if TYPE_CHECKING:
    from jetcluster.auth.certificates import PeerCertificate

GLOBAL_ACCOUNT = "$G"
STANDARD = "STANDARD"


class AuthError(CallerError):
    """A refused login. `text` is sent in -ERR; the exception's own text is the reason for the log."""

    text = "Authorization Violation"
    live_text = "Authorization Violation"
    """-ERR text for a connection that had logged in and is closed later; "": none is sent."""
    live_reason = "Authentication Failure"


@dataclass(slots=True, frozen=True)
class Session:
    """Limits and claims of one connection, as a user's JWT gives them. A limit of -1 is unlimited."""

    max_subscriptions: int = -1
    max_payload: int = -1
    expires: float = 0.0
    """Epoch second at which the connection is closed; 0: never."""
    name: str = ""
    tags: tuple[str, ...] = ()
    jwt: str = field(default="", repr=False)
    """The JWT that monitoring shows; "" for a bearer, whose JWT is a secret."""
    issuer: str = ""
    """The public key that signed the user's JWT."""
    account_name: str = ""


@dataclass(slots=True, frozen=True)
class AuthResult:
    """The account, user and permissions of a login."""

    account: str
    user: str
    """Name or nkey; "" for a login by token or without a user."""
    permissions: UserPermissions | None
    """None: everything is allowed."""
    session: Session | None = None


class Authenticator:
    """Checks logins against the users of one configuration. A reload makes a new one and re-checks the connections."""

    def __init__(self, options: Options, previous: Authenticator | None = None, rng: Rng | None = None) -> None:
        """`previous`: the one before a reload, whose results of bcrypt are kept: to re-check a thousand connections
        without them would block the event loop for a minute. `rng`: the operating system's by default."""
        auth = options.authorization
        self._passwords: PasswordChecker = PasswordChecker(rng) if previous is None else previous._passwords
        self._token = auth.token
        self._user = auth.user
        self._password = auth.password
        self._users: dict[str, _User] = {}
        self._nkeys: dict[str, _User] = {}
        self._no_auth_user = options.no_auth_user
        self._global_is_open = options.global_is_open
        ports = (options.tls, options.websocket.tls, options.leafnodes.tls)
        self._maps_somewhere = any(tls is not None and tls.verify_and_map for tls in ports)
        accounts = (options.accounts or {}).values()
        for user in [*auth.users, *(user for account in accounts for user in account.users)]:
            if user.nkey:
                self._nkeys[user.nkey] = _User(user)
            else:
                self._users[user.user] = _User(user)
        self._single_permissions = _permissions(auth.default_permissions)

    @property
    def required(self) -> bool:
        """True when credentials are checked. Clients may still log in without any if there is a `no_auth_user` or only
        the system account has users."""
        return bool(self._users or self._nkeys or self._token or self._user or self._global_is_open)

    @property
    def nonce_required(self) -> bool:
        return bool(self._nkeys)

    def check(
        self,
        connect: Mapping[str, object],
        nonce: bytes,
        client_ip: str = "",
        connection_type: str = STANDARD,
        *,
        certificate: PeerCertificate | None = None,
        by_certificate: bool = False,
    ) -> AuthResult:
        """Returns the result of a login. Raises AuthError. `connect` is the decoded CONNECT object, `nonce` the text of
        INFO.nonce. With `by_certificate` (verify_and_map) the `certificate` names the user, whose password is still
        required if there is one. Only users with JWTs are checked by `client_ip`."""
        if not self.required:
            return AuthResult(GLOBAL_ACCOUNT, _text(connect, "user"), None)
        nkey = _text(connect, "nkey")
        if nkey and self._nkeys:
            return self._check_nkey(nkey, _text(connect, "sig"), nonce, connection_type)
        name, password = _text(connect, "user"), _text(connect, "pass")
        token = _text(connect, "auth_token")
        if by_certificate and self._users:
            return self._check_certificate(certificate, password, connection_type)
        if self._no_auth_user and not (name or password or token or nkey):
            return self._admit(self._default_user(), connection_type)
        if self._global_is_open and not (name or password or token or nkey):
            return AuthResult(GLOBAL_ACCOUNT, "", None)
        if self._users:
            user = self._users.get(name)
            if user is not None and not user.password and self._maps_somewhere:
                raise AuthError(f'user "{name}" requires a client certificate')
            if user is not None and self._passwords.matches(user.password, password):
                return self._admit(user, connection_type)
            raise AuthError(f'user "{name}" is unknown or gave a wrong password')
        if self._token:
            if token and self._passwords.matches(self._token, token):
                return AuthResult(GLOBAL_ACCOUNT, "", self._single_permissions)
            raise AuthError("wrong token")
        if self._user and name == self._user and self._passwords.matches(self._password, password):
            return AuthResult(GLOBAL_ACCOUNT, name, self._single_permissions)
        raise AuthError("no or wrong credentials")

    def slow_part(self, connect: Mapping[str, object]) -> SlowPart | None:
        """Returns the part of `check` that would block the event loop (bcrypt), to be run in a thread first; None when
        there is none."""
        name, password = _text(connect, "user"), _text(connect, "pass")
        if self._users:
            user = self._users.get(name)
            return None if user is None else self._passwords.slow_part(user.password, password)
        if self._token:
            token = _text(connect, "auth_token")
            return self._passwords.slow_part(self._token, token) if token else None
        return self._passwords.slow_part(self._password, password) if self._user and name == self._user else None

    def _check_nkey(self, nkey: str, signature: str, nonce: bytes, connection_type: str) -> AuthResult:
        user = self._nkeys.get(nkey)
        if user is None:
            raise AuthError(f'nkey "{nkey}" is unknown')
        if not nonce or not signature or not is_signed(decode_user_key(nkey), nonce, signature):
            raise AuthError(f'nkey "{nkey}" did not sign the nonce')
        return self._admit(user, connection_type)

    def _check_certificate(
        self, certificate: PeerCertificate | None, password: str, connection_type: str
    ) -> AuthResult:
        from jetcluster.auth.certificates import user_of

        if certificate is None:
            raise AuthError("a user is required in a client certificate, and there is none")
        may_come = {
            name: user
            for name, user in self._users.items()
            if not user.connection_types or connection_type in user.connection_types
        }
        name = user_of(certificate, may_come)
        if name is None or not self._passwords.matches(may_come[name].password, password):
            raise AuthError(f'client certificate of "{certificate.subject}": no such user, or a wrong password')
        return may_come[name].result

    def _default_user(self) -> _User:
        user = self._users.get(self._no_auth_user) or self._nkeys.get(self._no_auth_user)
        if user is None:
            raise AuthError(f'no_auth_user "{self._no_auth_user}" is unknown')
        return user

    @staticmethod
    def _admit(user: _User, connection_type: str) -> AuthResult:
        if user.connection_types and connection_type not in user.connection_types:
            raise AuthError(f'user "{user.result.user}" may not use this type of connection')
        return user.result


class _User:
    """A configured user and its result, whose permissions all connections of the user share."""

    __slots__ = ("connection_types", "password", "result")

    def __init__(self, user: UserOptions) -> None:
        self.password = user.password
        self.connection_types = frozenset(user.connection_types)
        self.result = AuthResult(user.account, user.user or user.nkey, _permissions(user.permissions))


def _permissions(options: PermissionOptions | None) -> UserPermissions | None:
    return None if options is None else UserPermissions(options)


def _text(connect: Mapping[str, object], key: str) -> str:
    value = connect.get(key)
    return value if isinstance(value, str) else ""
