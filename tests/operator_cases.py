"""Attempts to log in to a server in operator mode: a few that must succeed, many that must fail.

One table for the authenticator alone, for the server, and for nats-server.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tests.signer import Account, Key, Operator, User, preload

DAY = 24 * 3600
Connect = dict[str, Any]
Case = Callable[["World", bytes], Connect]
"""(world, nonce of this connection) -> the fields of CONNECT."""

ADMITTED: dict[str, Case] = {}
REFUSED: dict[str, Case] = {}


class World:
    """An operator with a signing key, and accounts of every kind."""

    def __init__(self) -> None:
        self.operator_key = Key("operator")
        self.operator = Operator(signing_keys=[self.operator_key.public])
        self.stranger = Operator()
        self.now = int(time.time())
        make = self.operator.account
        self.plain = make("plain")
        self.system = make("SYS")
        self.by_signing_key = Account(self.operator_key, "by signing key", {})
        self.no_bearer = make("no bearer", disallow_bearer=True)
        self.expired = make("expired")
        self.expired.fields = {"exp": self.now - 100}
        self.not_yet = make("not yet")
        self.not_yet.fields = {"nbf": self.now + DAY}
        self.unpreloaded = make("not preloaded")
        self.foreign = self.stranger.account("foreign")
        self.self_signed = make("self signed")
        self.self_signed.signer = self.self_signed.key
        self.full = make("no connections", conn=0)
        self.no_limits = Account(self.operator.key, "no limits", {})
        self.no_limits.limits = {}
        self.revoking = make("revoking")
        self.revoked = self.revoking.user("revoked", fields={"iat": 100})
        self.revoked_before = self.revoking.user("revoked before", fields={"iat": 100})
        self.revoking.claims = {"revocations": {self.revoked.key.public: 100, self.revoked_before.key.public: 99}}
        self.revoking_all = make("revoking all")
        self.revoking_all.claims = {"revocations": {"*": 100}}
        self.signing = make("signing")
        self.signing_key, self.scoped_key, self.strange_key = Key("account"), Key("account"), Key("account")
        template = {
            "pub": {"allow": ["a.{{name()}}.>", "b.{{tag(team)}}"], "deny": ["c.{{subject()}}"]},
            "sub": {"allow": ["{{account-name()}}.{{account-subject()}}", "t.{{account-tag(zone)}}"]},
            "subs": 7,
        }
        scope = {"kind": "user_scope", "key": self.scoped_key.public, "role": "r", "template": template}
        self.signing.claims = {"signing_keys": [self.signing_key.public, scope], "tags": ["zone:a", "zone:b"]}
        self.callout = make("callout")
        self.callout.claims = {"authorization": {"auth_users": [Key("user").public]}}

    @property
    def preloaded(self) -> list[Account]:
        return [
            self.plain, self.system, self.by_signing_key, self.no_bearer, self.expired, self.not_yet, self.foreign,
            self.self_signed, self.full, self.no_limits, self.revoking, self.revoking_all, self.signing, self.callout,
        ]  # fmt: skip

    @property
    def config(self) -> str:
        system = f"system_account: {self.system.public}\n"
        return f'operator: "{self.operator.jwt}"\n{system}{preload(*self.preloaded)}'

    def windows(self, *hours: tuple[int, int]) -> dict[str, Any]:
        """`times` of a user: from so many hours before now to so many after, in a zone that is not the machine's."""
        zone = "Asia/Tokyo"
        here = datetime.fromtimestamp(self.now, ZoneInfo(zone))

        def at(offset: int) -> str:
            return (here + timedelta(hours=offset)).strftime("%H:%M:%S")

        times = [{"start": at(start), "end": at(end)} for start, end in hours]
        return {"times": times, "times_location": zone}


def admitted(case: Case) -> Case:
    ADMITTED[case.__name__] = case
    return case


def refused(case: Case) -> Case:
    REFUSED[case.__name__] = case
    return case


def _part(value: Any) -> str:
    return (
        base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).decode().rstrip("=")
    )


def _with_token(user: User, nonce: bytes, token: Any) -> Connect:
    return {**user.connect(nonce), "jwt": token}


def _tampered(user: User, **changes: Any) -> str:
    header, payload, signature = user.jwt.split(".")
    body = json.loads(base64.urlsafe_b64decode(payload + "=="))
    body["nats"] |= changes
    return f"{header}.{_part(body)}.{signature}"


# ---- may come


@admitted
def plain(world: World, nonce: bytes) -> Connect:
    return world.plain.user().connect(nonce)


@admitted
def signature_in_url_base64(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    sig = base64.urlsafe_b64encode(user.key.private.sign(nonce)).decode().rstrip("=")
    return {"jwt": user.jwt, "sig": sig}


@admitted
def account_by_the_operators_signing_key(world: World, nonce: bytes) -> Connect:
    return world.by_signing_key.user().connect(nonce)


@admitted
def bearer_without_signature(world: World, _nonce: bytes) -> Connect:
    return {"jwt": world.plain.user(bearer_token=True).jwt}


@admitted
def bearer_with_wrong_signature(world: World, nonce: bytes) -> Connect:
    return {**world.plain.user(bearer_token=True).connect(nonce), "sig": "xx"}


@admitted
def not_expired_yet(world: World, nonce: bytes) -> Connect:
    return world.plain.user(fields={"exp": world.now + DAY, "nbf": world.now - 100}).connect(nonce)


@admitted
def signing_key_of_the_account(world: World, nonce: bytes) -> Connect:
    return world.signing.user(signer=world.signing_key).connect(nonce)


@admitted
def scoped_user(world: World, nonce: bytes) -> Connect:
    return world.signing.scoped("u", world.scoped_key, tags=["team:x", "team:y"]).connect(nonce)


@admitted
def revoked_before_it_was_issued(world: World, nonce: bytes) -> Connect:
    return world.revoked_before.connect(nonce)


@admitted
def issued_after_all_were_revoked(world: World, nonce: bytes) -> Connect:
    return world.revoking_all.user(fields={"iat": 101}).connect(nonce)


@admitted
def from_here(world: World, nonce: bytes) -> Connect:
    return world.plain.user(src=["10.0.0.0/8", "127.0.0.0/8"]).connect(nonce)


@admitted
def from_here_as_a_text(world: World, nonce: bytes) -> Connect:
    return world.plain.user(src="10.0.0.0/8,127.0.0.1/32").connect(nonce)


@admitted
def at_this_time(world: World, nonce: bytes) -> Connect:
    return world.plain.user(**world.windows((2, 3), (-2, 2))).connect(nonce)


@admitted
def over_midnight(world: World, nonce: bytes) -> Connect:
    return world.plain.user(**world.windows((-11, 11))).connect(nonce)


@admitted
def standard_connection(world: World, nonce: bytes) -> Connect:
    return world.plain.user(allowed_connection_types=["standard", "NEW_KIND"]).connect(nonce)


@admitted
def version_1(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    body = {"iss": world.plain.public, "sub": user.key.public, "name": "old", "iat": 1, "type": "user", "nats": {}}
    payload = _part(body)
    signature = _part(world.plain.key.private.sign(payload.encode()))
    return _with_token(user, nonce, f"{_part({'typ': 'jwt', 'alg': 'ed25519'})}.{payload}.{signature}")


@admitted
def with_password_beside(world: World, nonce: bytes) -> Connect:
    return {**world.plain.user().connect(nonce), "user": "u", "pass": "p"}


# ---- may not


@refused
def nothing(_world: World, _nonce: bytes) -> Connect:
    return {}


@refused
def password_only(_world: World, _nonce: bytes) -> Connect:
    return {"user": "u", "pass": "p"}


@refused
def nkey_only(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    return {"nkey": user.key.public, "sig": user.key.signature(nonce.decode()).decode()}


@refused
def no_signature(world: World, _nonce: bytes) -> Connect:
    return {"jwt": world.plain.user().jwt}


@refused
def empty_signature(world: World, nonce: bytes) -> Connect:
    return {**world.plain.user().connect(nonce), "sig": ""}


@refused
def signature_of_another_nonce(world: World, nonce: bytes) -> Connect:
    return world.plain.user().connect(nonce[::-1] + b"x")


@refused
def signature_by_another_user(world: World, nonce: bytes) -> Connect:
    return {**world.plain.user().connect(nonce), "jwt": world.plain.user().jwt}


@refused
def signature_that_is_no_base64(world: World, nonce: bytes) -> Connect:
    return {**world.plain.user().connect(nonce), "sig": "!!!!"}


@refused
def expired(world: World, nonce: bytes) -> Connect:
    return world.plain.user(fields={"exp": world.now - 100}).connect(nonce)


@refused
def not_yet_valid(world: World, nonce: bytes) -> Connect:
    return world.plain.user(fields={"nbf": world.now + DAY}).connect(nonce)


@refused
def issued_by_a_key_the_account_does_not_know(world: World, nonce: bytes) -> Connect:
    return world.signing.user(signer=world.strange_key).connect(nonce)


@refused
def issued_by_another_account(world: World, nonce: bytes) -> Connect:
    return world.plain.user(signer=world.signing.key).connect(nonce)


@refused
def issued_by_the_operator(world: World, nonce: bytes) -> Connect:
    return world.plain.user(signer=world.operator.key).connect(nonce)


@refused
def self_signed(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    body = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "issuer_account": world.plain.public}
    return _with_token(user, nonce, user.key.token(user.key.public, "me", body))


@refused
def signing_key_without_its_account(world: World, nonce: bytes) -> Connect:
    user = User(world.signing_key, "U", {"type": "user", "subs": -1, "data": -1, "payload": -1}, {})
    return user.connect(nonce)


@refused
def account_unknown(world: World, nonce: bytes) -> Connect:
    return world.unpreloaded.user().connect(nonce)


@refused
def account_by_another_operator(world: World, nonce: bytes) -> Connect:
    return world.foreign.user().connect(nonce)


@refused
def account_self_signed(world: World, nonce: bytes) -> Connect:
    return world.self_signed.user().connect(nonce)


@refused
def account_expired(world: World, nonce: bytes) -> Connect:
    return world.expired.user().connect(nonce)


@refused
def account_not_yet_valid(world: World, nonce: bytes) -> Connect:
    return world.not_yet.user().connect(nonce)


@refused
def revoked(world: World, nonce: bytes) -> Connect:
    return world.revoked.connect(nonce)


@refused
def all_revoked(world: World, nonce: bytes) -> Connect:
    return world.revoking_all.user(fields={"iat": 100}).connect(nonce)


@refused
def bearer_where_none_may_be(world: World, nonce: bytes) -> Connect:
    return world.no_bearer.user(bearer_token=True).connect(nonce)


@refused
def from_elsewhere(world: World, nonce: bytes) -> Connect:
    return world.plain.user(src=["10.0.0.0/8", "::1/128"]).connect(nonce)


@refused
def src_that_is_no_network(world: World, nonce: bytes) -> Connect:
    return world.plain.user(src=["127.0.0.1"]).connect(nonce)


@refused
def at_another_time(world: World, nonce: bytes) -> Connect:
    return world.plain.user(**world.windows((1, 2), (-3, -2))).connect(nonce)


@refused
def in_no_time_zone(world: World, nonce: bytes) -> Connect:
    return world.plain.user(**{**world.windows((-2, 2)), "times_location": "Mars/Olympus"}).connect(nonce)


@refused
def time_that_is_none(world: World, nonce: bytes) -> Connect:
    return world.plain.user(times=[{"start": "25:00:00", "end": "26:00:00"}]).connect(nonce)


@refused
def other_connection_type(world: World, nonce: bytes) -> Connect:
    return world.plain.user(allowed_connection_types=["WEBSOCKET"]).connect(nonce)


@refused
def connection_type_of_the_future(world: World, nonce: bytes) -> Connect:
    return world.plain.user(allowed_connection_types=["NEW_KIND"]).connect(nonce)


@refused
def proxy_required(world: World, nonce: bytes) -> Connect:
    return world.plain.user(proxy_required=True).connect(nonce)


@refused
def permission_that_is_no_subject(world: World, nonce: bytes) -> Connect:
    return world.plain.user(pub={"allow": ["a..b"]}).connect(nonce)


@refused
def publish_permission_with_queue(world: World, nonce: bytes) -> Connect:
    return world.plain.user(pub={"allow": ["a q"]}).connect(nonce)


@refused
def scoped_user_with_permissions_of_its_own(world: World, nonce: bytes) -> Connect:
    return world.signing.scoped("u", world.scoped_key, pub={"allow": [">"]}).connect(nonce)


@refused
def scoped_user_with_limits_of_its_own(world: World, nonce: bytes) -> Connect:
    return world.signing.user(signer=world.scoped_key).connect(nonce)


@refused
def scoped_user_as_bearer(world: World, nonce: bytes) -> Connect:
    return world.signing.scoped("u", world.scoped_key, bearer_token=True).connect(nonce)


@refused
def scoped_user_whose_name_is_no_token(world: World, nonce: bytes) -> Connect:
    user = world.signing.scoped("u", world.scoped_key)
    body = json.loads(base64.urlsafe_b64decode(user.jwt.split(".")[1] + "=="))
    key = Key("user")
    claims = body["nats"] | {"issuer_account": "nobody"}
    return _with_token(user, nonce, world.scoped_key.token(key.public, "..", claims))


@refused
def delegated_to_an_auth_callout(world: World, nonce: bytes) -> Connect:
    return world.callout.user().connect(nonce)


@refused
def tampered_payload(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    return _with_token(user, nonce, _tampered(user, bearer_token=True))


@refused
def payload_of_another(world: World, nonce: bytes) -> Connect:
    one, two = world.plain.user().jwt.split("."), world.plain.user()
    return _with_token(two, nonce, f"{one[0]}.{two.jwt.split('.')[1]}.{one[2]}")


@refused
def algorithm_none(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    return _with_token(user, nonce, f"{_part({'typ': 'JWT', 'alg': 'none'})}.{user.jwt.split('.')[1]}.")


@refused
def algorithm_none_signed(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    body = json.loads(base64.urlsafe_b64decode(user.jwt.split(".")[1] + "=="))
    return _with_token(user, nonce, world.plain.key.sign(body, {"typ": "JWT", "alg": "none"}))


@refused
def algorithm_of_others(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    body = json.loads(base64.urlsafe_b64decode(user.jwt.split(".")[1] + "=="))
    return _with_token(user, nonce, world.plain.key.sign(body, {"typ": "JWT", "alg": "HS256"}))


@refused
def type_of_others(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    body = json.loads(base64.urlsafe_b64decode(user.jwt.split(".")[1] + "=="))
    return _with_token(user, nonce, world.plain.key.sign(body, {"typ": "JWS", "alg": "ed25519-nkey"}))


@refused
def of_a_newer_version(world: World, nonce: bytes) -> Connect:
    return world.plain.user(version=3).connect(nonce)


@refused
def without_a_version(world: World, nonce: bytes) -> Connect:
    return world.plain.user(version=0).connect(nonce)


@refused
def limits_that_are_no_numbers(world: World, nonce: bytes) -> Connect:
    return world.plain.user(subs="-1").connect(nonce)


@refused
def account_jwt(world: World, nonce: bytes) -> Connect:
    return _with_token(world.plain.user(), nonce, world.plain.jwt)


@refused
def operator_jwt(world: World, nonce: bytes) -> Connect:
    return _with_token(world.plain.user(), nonce, world.operator.jwt)


@refused
def activation_jwt(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    return _with_token(
        user, nonce, world.plain.key.token(user.key.public, "U", {"type": "activation", "kind": "stream"})
    )


@refused
def subject_that_is_an_account(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    body = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    return _with_token(user, nonce, world.plain.key.token(world.plain.public, "U", body))


@refused
def truncated(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    return _with_token(user, nonce, user.jwt[:-5])


@refused
def garbage(world: World, nonce: bytes) -> Connect:
    return _with_token(world.plain.user(), nonce, "eyJ.no.jwt")


@refused
def two_parts(world: World, nonce: bytes) -> Connect:
    user = world.plain.user()
    return _with_token(user, nonce, user.jwt.rpartition(".")[0])


@refused
def json_that_is_a_list(world: World, nonce: bytes) -> Connect:
    signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part([1, 2])}"
    return _with_token(world.plain.user(), nonce, f"{signed}.{_part(world.plain.key.private.sign(signed.encode()))}")


@refused
def json_without_end(world: World, nonce: bytes) -> Connect:
    signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(b'[' * 500)}"
    return _with_token(world.plain.user(), nonce, f"{signed}.{_part(world.plain.key.private.sign(signed.encode()))}")


# ---- other answers

OTHERWISE: dict[str, tuple[Case, str]] = {
    "full_account": (
        lambda world, nonce: world.full.user().connect(nonce),
        "maximum account active connections exceeded",
    ),
    "account_without_limits": (
        lambda world, nonce: world.no_limits.user().connect(nonce),
        "maximum account active connections exceeded",
    ),
    "user_without_subscriptions": (
        lambda world, nonce: world.plain.user(subs=0).connect(nonce),
        "maximum subscriptions exceeded",
    ),
}
"""Name -> (case, the -ERR text)."""
