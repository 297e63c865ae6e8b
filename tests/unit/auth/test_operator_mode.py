"""Users with JWTs: who may come, who may not, and what they may do then."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.auth.authenticator import AuthError, AuthResult
from jetcluster.auth.operator_mode import KnownAccount, KnownAccounts, OperatorAuthenticator
from jetcluster.clock import SystemClock
from jetcluster.config.claims.account import verified_account
from jetcluster.config.claims.token import ClaimsError
from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import Options
from tests.operator_cases import ADMITTED, REFUSED, Cases
from tests.signer import Account, Key, Operator, preload

NONCE = b"abcdefghijklmno"
HERE = "127.0.0.1"


def load(folder: Path, text: str) -> Options:
    path = folder / "c.conf"
    path.write_text(text)
    options = load_file(str(path), {})[0]
    assert problem_of(options) is None
    return options


def authenticator(options: Options) -> OperatorAuthenticator:
    clock, known = SystemClock(), KnownAccounts()
    for key, text in options.operator.preload.items():
        try:
            claims = verified_account(key, text, options.operator.keys, clock.time_ns() / 1e9)
        except ClaimsError:
            continue
        known.by_key[key] = KnownAccount(claims, clock.time_ns())
    return OperatorAuthenticator(options, known, clock)


@pytest.fixture(scope="module")
def cases() -> Cases:
    return Cases()


@pytest.fixture(scope="module")
def auth(cases: Cases, tmp_path_factory: pytest.TempPathFactory) -> OperatorAuthenticator:
    return authenticator(load(tmp_path_factory.mktemp("operator"), cases.config))


@pytest.mark.parametrize("name", ADMITTED)
def test_who_may_come(cases: Cases, auth: OperatorAuthenticator, name: str) -> None:
    for _ in range(2):  # the second time the token is known
        result = auth.check(ADMITTED[name](cases, NONCE), NONCE, HERE)
        assert result.user.startswith("U")
        assert result.account in {account.public for account in cases.preloaded}


@pytest.mark.parametrize("name", REFUSED)
def test_who_may_not(cases: Cases, auth: OperatorAuthenticator, name: str) -> None:
    connect = REFUSED[name](cases, NONCE)
    for _ in range(2):
        with pytest.raises(AuthError) as error:
            auth.check(connect, NONCE, HERE)
        assert error.value.text == "Authorization Violation"


def test_a_remembered_token_is_asked_for_its_signature_each_time(cases: Cases, auth: OperatorAuthenticator) -> None:
    user = cases.plain.user()
    auth.check(user.connect(NONCE), NONCE, HERE)
    with pytest.raises(AuthError):
        auth.check(user.connect(NONCE), b"anothernonce000", HERE)
    with pytest.raises(AuthError):
        auth.check({"jwt": user.jwt}, NONCE, HERE)


def test_huge_token(cases: Cases, auth: OperatorAuthenticator) -> None:
    with pytest.raises(AuthError):
        auth.check({"jwt": "e" * 2_000_000, "sig": "x"}, NONCE, HERE)
    with pytest.raises(AuthError):
        auth.check({"jwt": cases.plain.user(name="n" * 1_100_000).jwt}, NONCE, HERE)


def test_limits_and_permissions(cases: Cases, auth: OperatorAuthenticator) -> None:
    end = cases.now + 500
    user = cases.plain.user(
        "joe", subs=3, payload=100, pub={"allow": ["a.*"], "deny": ["a.b"]}, sub={"deny": ["x q"]}, fields={"exp": end}
    )  # fmt: skip
    result = auth.check(user.connect(NONCE), NONCE, HERE)
    assert result.user == user.key.public
    session = result.session
    assert session is not None
    assert (session.max_subscriptions, session.max_payload, session.expires) == (3, 100, end)
    assert (session.name, session.issuer, session.account_name) == ("joe", cases.plain.public, "plain")
    assert user.jwt not in repr(session)
    rights = result.permissions
    assert rights is not None
    assert rights.can_publish(b"a.c")
    assert not rights.can_publish(b"a.b")
    assert not rights.can_publish(b"c")
    assert rights.can_subscribe(b"x", None)
    assert not rights.can_subscribe(b"x", b"q")


def test_a_template_says_everything(cases: Cases, auth: OperatorAuthenticator) -> None:
    user = cases.signing.scoped("joe", cases.scoped_key, tags=["team:x", "team:y", "other:z"])
    result = auth.check(user.connect(NONCE), NONCE, HERE)
    assert result.account == cases.signing.public
    assert result.session is not None
    assert (result.session.max_subscriptions, result.session.max_payload) == (7, -1)
    rights = result.permissions
    assert rights is not None
    published = (b"a.joe.b", b"b.x", b"b.y")
    assert all(map(rights.can_publish, published))
    assert not any(map(rights.can_publish, (b"a.jim.b", b"b.z", f"c.{user.key.public}".encode())))
    assert rights.can_subscribe(f"signing.{cases.signing.public}".encode(), None)
    assert rights.can_subscribe(b"t.a", None)
    assert not rights.can_subscribe(b"t.c", None)


def test_a_template_without_the_users_tags_allows_less(cases: Cases, auth: OperatorAuthenticator) -> None:
    result = auth.check(cases.signing.scoped("joe", cases.scoped_key).connect(NONCE), NONCE, HERE)
    assert result.permissions is not None
    assert not result.permissions.can_publish(b"b.x")


@pytest.mark.parametrize(
    ("lists", "allowed", "denied"),
    [
        ({"pub": {"allow": ["a.{{tag(none)}}"]}}, [], [b"a.x", b"a"]),
        ({"pub": {"allow": ["{{NAME()}}"]}}, [b"joe"], [b"x"]),
        ({"pub": {"deny": ["d.{{name()}}"]}}, [b"d.x"], [b"d.joe"]),
        ({"pub": {"allow": ["{{tag(a)}}.{{tag(b)}}"]}}, [b"1.3", b"2.3"], [b"3.1"]),
    ],
)
def test_templates(tmp_path: Path, lists: dict[str, object], allowed: list[bytes], denied: list[bytes]) -> None:
    result = scoped(tmp_path, lists)
    assert result.permissions is not None
    assert all(map(result.permissions.can_publish, allowed))
    assert not any(map(result.permissions.can_publish, denied))


@pytest.mark.parametrize(
    "lists",
    [
        {"pub": {"deny": ["d.{{tag(none)}}"]}},  # what is to be denied must come to something
        {"pub": {"deny": ["d.{{tag(blank)}}"]}},
        {"pub": {"allow": ["{{what()}}"]}},
        {"pub": {"allow": [".".join(["{{tag(many)}}"] * 5)]}},
    ],
)
def test_templates_that_let_nobody_in(tmp_path: Path, lists: dict[str, object]) -> None:
    with pytest.raises(AuthError):
        scoped(tmp_path, lists)


def scoped(folder: Path, template: dict[str, object]) -> AuthResult:
    operator, key = Operator(), Key("account")
    account = operator.account("A")
    account.claims = {"signing_keys": [{"kind": "user_scope", "key": key.public, "template": template}]}
    auth = authenticator(load(folder, f'operator: "{operator.jwt}"\n{preload(account)}'))
    tags = ["a:1", "a:2", "b:3", "blank: ", *(f"many:{number}" for number in range(10))]
    return auth.check(account.scoped("joe", key, tags=tags).connect(NONCE), NONCE, HERE)


def test_default_permissions_are_for_users_without_any(tmp_path: Path) -> None:
    operator = Operator()
    account = operator.account("A")
    account.claims = {"default_permissions": {"pub": {"allow": ["a"]}, "resp": {"max": -1, "ttl": 0}}}
    auth = authenticator(load(tmp_path, f'operator: "{operator.jwt}"\n{preload(account)}'))
    rights = auth.check(account.user().connect(NONCE), NONCE, HERE).permissions
    assert rights is not None
    assert (rights.can_publish(b"a"), rights.can_publish(b"b")) == (True, False)
    assert rights.allow_responses == (-1, 120.0)
    rights = auth.check(account.user(pub={"allow": ["b"]}).connect(NONCE), NONCE, HERE).permissions
    assert rights is not None
    assert (rights.can_publish(b"a"), rights.can_publish(b"b")) == (False, True)


def test_strict_signing_keys(tmp_path: Path) -> None:
    """The operator signs with its signing keys only, and so do accounts."""
    operator_key, account_key = Key("operator"), Key("account")
    operator = Operator(signing_keys=[operator_key.public], strict_signing_key_usage=True)
    good, bad = Account(operator_key, "good", {}), operator.account("bad")
    good.claims = {"signing_keys": [account_key.public]}
    auth = authenticator(load(tmp_path, f'operator: "{operator.jwt}"\n{preload(good, bad)}'))
    auth.check(good.user(signer=account_key).connect(NONCE), NONCE, HERE)
    for user in (good.user(), bad.user()):
        with pytest.raises(AuthError):
            auth.check(user.connect(NONCE), NONCE, HERE)


def test_trusted_keys_without_an_operator(tmp_path: Path) -> None:
    operator, stranger = Operator(), Operator()
    good, bad = operator.account("good"), stranger.account("bad")
    auth = authenticator(load(tmp_path, f"trusted_keys: [{operator.key.public}]\n{preload(good, bad)}"))
    assert auth.required
    auth.check(good.user().connect(NONCE), NONCE, HERE)
    with pytest.raises(AuthError):
        auth.check(bad.user().connect(NONCE), NONCE, HERE)


def test_default_sentinel_and_pinned_accounts(tmp_path: Path) -> None:
    operator = Operator()
    pinned, other = operator.account("pinned"), operator.account("other")
    bearer = pinned.user(bearer_token=True)
    auth = authenticator(
        load(
            tmp_path,
            f'operator: "{operator.jwt}"\n{preload(pinned, other)}default_sentinel: "{bearer.jwt}"\n'
            f"resolver_pinned_accounts: {pinned.public}\n",
        )
    )
    for connect in ({}, {"user": "u", "pass": "p"}, {"jwt": "eyJ.no.jwt"}):
        assert auth.check(connect, NONCE, HERE).user == bearer.key.public
    assert auth.check(pinned.user().connect(NONCE), NONCE, HERE).account == pinned.public
    with pytest.raises(AuthError):
        auth.check(other.user().connect(NONCE), NONCE, HERE)


def test_other_kinds_of_connections(cases: Cases, auth: OperatorAuthenticator) -> None:
    user = cases.plain.user(allowed_connection_types=["WEBSOCKET", "LEAFNODE"])
    for kind in ("WEBSOCKET", "LEAFNODE"):
        auth.check(user.connect(NONCE), NONCE, HERE, kind)
    with pytest.raises(AuthError):
        auth.check(user.connect(NONCE), NONCE, HERE, "STANDARD")


def test_nothing_secret_is_shown(cases: Cases, auth: OperatorAuthenticator) -> None:
    for name, case in REFUSED.items():
        connect = case(cases, NONCE)
        with pytest.raises(AuthError) as error:
            auth.check(connect, NONCE, HERE)
        for secret in ("jwt", "sig", "pass"):
            if len(connect.get(secret, "")) > 3:
                assert connect[secret] not in str(error.value), name
