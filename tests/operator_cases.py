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

from tests.signer import Account, Key, Operator, User, part, preload, url_base64

DAY = 24 * 3600
Connect = dict[str, Any]
Case = Callable[["Cases", bytes], Connect]
"""(cases, nonce of this connection) -> the fields of CONNECT."""


class Cases:
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


def _user(make: Callable[[Cases], User], **fields: str) -> Case:
    """The user that `make` makes. `fields`: those of CONNECT that are not its own."""
    return lambda cases, nonce: {**make(cases).connect(nonce), **fields}


def _plain(**claims: Any) -> Case:
    return _user(lambda cases: cases.plain.user(**claims))


def _token(make: Callable[[Cases, User], str]) -> Case:
    """A user of the account `plain` that comes with another token."""

    def connect(cases: Cases, nonce: bytes) -> Connect:
        user = cases.plain.user()
        return {**user.connect(nonce), "jwt": make(cases, user)}

    return connect


def _body(user: User) -> Any:
    return json.loads(base64.urlsafe_b64decode(user.jwt.split(".")[1] + "=="))


def _tampered(user: User, **changes: Any) -> str:
    header, _, signature = user.jwt.split(".")
    body = _body(user)
    body["nats"] |= changes
    return f"{header}.{part(body)}.{signature}"


def _with_payload_of_another(cases: Cases, user: User) -> str:
    header, _, signature = cases.plain.user().jwt.split(".")
    return f"{header}.{user.jwt.split('.')[1]}.{signature}"


def _version_1(cases: Cases, user: User) -> str:
    body = {"iss": cases.plain.public, "sub": user.key.public, "name": "old", "iat": 1, "type": "user", "nats": {}}
    signature = url_base64(cases.plain.key.private.sign(part(body).encode()))
    return f"{part({'typ': 'jwt', 'alg': 'ed25519'})}.{part(body)}.{signature}"


def _self_signed(cases: Cases, user: User) -> str:
    body = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "issuer_account": cases.plain.public}
    return user.key.token(user.key.public, "me", body)


def _with_header(typ: str, algorithm: str) -> Case:
    return _token(lambda cases, user: cases.plain.key.sign(_body(user), {"typ": typ, "alg": algorithm}))


def _with_payload(payload: str) -> Case:
    signed = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{payload}"
    return _token(lambda cases, _: f"{signed}.{url_base64(cases.plain.key.private.sign(signed.encode()))}")


def _url_base64_signature(cases: Cases, nonce: bytes) -> Connect:
    user = cases.plain.user()
    return {"jwt": user.jwt, "sig": url_base64(user.key.private.sign(nonce))}


def _nkey_only(cases: Cases, nonce: bytes) -> Connect:
    user = cases.plain.user()
    return {"nkey": user.key.public, "sig": user.key.signature(nonce.decode()).decode()}


def _scoped_user_without_a_name(cases: Cases, nonce: bytes) -> Connect:
    user = cases.signing.scoped("u", cases.scoped_key)
    claims = _body(user)["nats"] | {"issuer_account": "nobody"}
    return {**user.connect(nonce), "jwt": cases.scoped_key.token(Key("user").public, "..", claims)}


ADMITTED: dict[str, Case] = {
    "plain": _plain(),
    "signature_in_url_base64": _url_base64_signature,
    "account_by_the_operators_signing_key": _user(lambda cases: cases.by_signing_key.user()),
    "bearer_without_signature": lambda cases, _: {"jwt": cases.plain.user(bearer_token=True).jwt},
    "bearer_with_wrong_signature": _user(lambda cases: cases.plain.user(bearer_token=True), sig="xx"),
    "not_expired_yet": _user(lambda cases: cases.plain.user(fields={"exp": cases.now + DAY, "nbf": cases.now - 100})),
    "signing_key_of_the_account": _user(lambda cases: cases.signing.user(signer=cases.signing_key)),
    "scoped_user": _user(lambda cases: cases.signing.scoped("u", cases.scoped_key, tags=["team:x", "team:y"])),
    "revoked_before_it_was_issued": _user(lambda cases: cases.revoked_before),
    "issued_after_all_were_revoked": _user(lambda cases: cases.revoking_all.user(fields={"iat": 101})),
    "from_here": _plain(src=["10.0.0.0/8", "127.0.0.0/8"]),
    "from_here_as_a_text": _plain(src="10.0.0.0/8,127.0.0.1/32"),
    "at_this_time": _user(lambda cases: cases.plain.user(**cases.windows((2, 3), (-2, 2)))),
    "over_midnight": _user(lambda cases: cases.plain.user(**cases.windows((-11, 11)))),
    "standard_connection": _plain(allowed_connection_types=["standard", "NEW_KIND"]),
    "version_1": _token(_version_1),
    "with_password_beside": _user(lambda cases: cases.plain.user(), **{"user": "u", "pass": "p"}),
}
REFUSED: dict[str, Case] = {
    "nothing": lambda _world, _nonce: {},
    "password_only": lambda _world, _nonce: {"user": "u", "pass": "p"},
    "nkey_only": _nkey_only,
    "no_signature": lambda cases, _: {"jwt": cases.plain.user().jwt},
    "empty_signature": _user(lambda cases: cases.plain.user(), sig=""),
    "signature_of_another_nonce": lambda cases, nonce: cases.plain.user().connect(nonce[::-1] + b"x"),
    "signature_by_another_user": _token(lambda cases, _: cases.plain.user().jwt),
    "signature_that_is_no_base64": _user(lambda cases: cases.plain.user(), sig="!!!!"),
    "expired": _user(lambda cases: cases.plain.user(fields={"exp": cases.now - 100})),
    "not_yet_valid": _user(lambda cases: cases.plain.user(fields={"nbf": cases.now + DAY})),
    "issued_by_a_key_the_account_does_not_know": _user(lambda cases: cases.signing.user(signer=cases.strange_key)),
    "issued_by_another_account": _user(lambda cases: cases.plain.user(signer=cases.signing.key)),
    "issued_by_the_operator": _user(lambda cases: cases.plain.user(signer=cases.operator.key)),
    "self_signed": _token(_self_signed),
    "signing_key_without_its_account": _user(
        lambda cases: User(cases.signing_key, "U", {"type": "user", "subs": -1, "data": -1, "payload": -1}, {})
    ),
    "account_unknown": _user(lambda cases: cases.unpreloaded.user()),
    "account_by_another_operator": _user(lambda cases: cases.foreign.user()),
    "account_self_signed": _user(lambda cases: cases.self_signed.user()),
    "account_expired": _user(lambda cases: cases.expired.user()),
    "account_not_yet_valid": _user(lambda cases: cases.not_yet.user()),
    "revoked": _user(lambda cases: cases.revoked),
    "all_revoked": _user(lambda cases: cases.revoking_all.user(fields={"iat": 100})),
    "bearer_where_none_may_be": _user(lambda cases: cases.no_bearer.user(bearer_token=True)),
    "from_elsewhere": _plain(src=["10.0.0.0/8", "::1/128"]),
    "src_that_is_no_network": _plain(src=["127.0.0.1"]),
    "at_another_time": _user(lambda cases: cases.plain.user(**cases.windows((1, 2), (-3, -2)))),
    "in_no_time_zone": _user(
        lambda cases: cases.plain.user(**{**cases.windows((-2, 2)), "times_location": "Mars/Olympus"})
    ),
    "time_that_is_none": _plain(times=[{"start": "25:00:00", "end": "26:00:00"}]),
    "other_connection_type": _plain(allowed_connection_types=["WEBSOCKET"]),
    "connection_type_of_the_future": _plain(allowed_connection_types=["NEW_KIND"]),
    "proxy_required": _plain(proxy_required=True),
    "permission_that_is_no_subject": _plain(pub={"allow": ["a..b"]}),
    "publish_permission_with_queue": _plain(pub={"allow": ["a q"]}),
    "scoped_user_with_permissions_of_its_own": _user(
        lambda cases: cases.signing.scoped("u", cases.scoped_key, pub={"allow": [">"]})
    ),
    "scoped_user_with_limits_of_its_own": _user(lambda cases: cases.signing.user(signer=cases.scoped_key)),
    "scoped_user_as_bearer": _user(lambda cases: cases.signing.scoped("u", cases.scoped_key, bearer_token=True)),
    "scoped_user_whose_name_is_no_token": _scoped_user_without_a_name,
    "delegated_to_an_auth_callout": _user(lambda cases: cases.callout.user()),
    "tampered_payload": _token(lambda _, user: _tampered(user, bearer_token=True)),
    "payload_of_another": _token(_with_payload_of_another),
    "algorithm_none": _token(lambda _, user: f"{part({'typ': 'JWT', 'alg': 'none'})}.{user.jwt.split('.')[1]}."),
    "algorithm_none_signed": _with_header("JWT", "none"),
    "algorithm_of_others": _with_header("JWT", "HS256"),
    "type_of_others": _with_header("JWS", "ed25519-nkey"),
    "of_a_newer_version": _plain(version=3),
    "without_a_version": _plain(version=0),
    "limits_that_are_no_numbers": _plain(subs="-1"),
    "account_jwt": _token(lambda cases, _: cases.plain.jwt),
    "operator_jwt": _token(lambda cases, _: cases.operator.jwt),
    "activation_jwt": _token(
        lambda cases, user: cases.plain.key.token(user.key.public, "U", {"type": "activation", "kind": "stream"})
    ),
    "subject_that_is_an_account": _token(
        lambda cases, _: cases.plain.key.token(
            cases.plain.public, "U", {"type": "user", "subs": -1, "data": -1, "payload": -1}
        )
    ),
    "truncated": _token(lambda _, user: user.jwt[:-5]),
    "garbage": _token(lambda _world, _user: "eyJ.no.jwt"),
    "two_parts": _token(lambda _, user: user.jwt.rpartition(".")[0]),
    "json_that_is_a_list": _with_payload(part([1, 2])),
    "json_without_end": _with_payload(url_base64(b"[" * 500)),
}
OTHERWISE: dict[str, tuple[Case, str]] = {
    "full_account": (_user(lambda cases: cases.full.user()), "maximum account active connections exceeded"),
    "account_without_limits": (
        _user(lambda cases: cases.no_limits.user()),
        "maximum account active connections exceeded",
    ),
    "user_without_subscriptions": (_plain(subs=0), "maximum subscriptions exceeded"),
}
"""Name -> (case, the -ERR text)."""
