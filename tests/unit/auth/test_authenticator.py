from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from jetcluster.auth.authenticator import Authenticator, AuthError, AuthResult
from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.nkeys import encode_key, encode_user_key
from tests.unit.auth.test_hostile_tokens import bad_signatures

NONCE = b"abcdefghijklmno"
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NKEY = encode_user_key(PRIVATE.public_key().public_bytes_raw())


@pytest.fixture
def make(tmp_path: Path):
    def build(text: str) -> Authenticator:
        path = tmp_path / "c.conf"
        path.write_text(text)
        return Authenticator(load_file(str(path), {})[0])

    return build


def sign(nonce: bytes) -> str:
    return base64.urlsafe_b64encode(PRIVATE.sign(nonce)).decode().rstrip("=")


def who(result: AuthResult) -> tuple[str, str]:
    return result.account, result.user


def refused(authenticator: Authenticator, connect: dict[str, object], nonce: bytes = NONCE) -> bool:
    try:
        authenticator.check(connect, nonce)
    except AuthError as error:
        assert error.text == "Authorization Violation"
        return True
    return False


def test_nothing_configured_accepts_and_ignores_credentials(make) -> None:
    open_to_all = make("port: 1\naccounts { A {} }\n")
    assert not open_to_all.required
    assert who(open_to_all.check({"user": "u", "pass": "whatever"}, b"")) == ("$G", "u")


def test_single_user(make) -> None:
    auth = make('authorization { user: u, password: "p" }')
    assert auth.required
    assert not auth.nonce_required
    assert who(auth.check({"user": "u", "pass": "p"}, b"")) == ("$G", "u")
    for connect in ({}, {"user": "u"}, {"user": "u", "pass": "x"}, {"user": "x", "pass": "p"}, {"auth_token": "p"}):
        assert refused(auth, connect), connect


def test_token(make) -> None:
    auth = make("authorization { token: tok }")
    assert who(auth.check({"auth_token": "tok"}, b"")) == ("$G", "")
    for connect in ({}, {"auth_token": ""}, {"auth_token": "x"}, {"user": "tok"}, {"auth_token": 5}):
        assert refused(auth, connect), connect


def test_users_of_accounts_and_of_the_top_level(make) -> None:
    auth = make("""
        authorization { users: [ {user: g, password: gp} ] }
        accounts { A { users: [ {user: a, password: ap, permissions: {publish: "x.>"}} ] }, B { users: [ {user: b} ] } }
    """)
    assert who(auth.check({"user": "g", "pass": "gp"}, b"")) == ("$G", "g")
    result = auth.check({"user": "a", "pass": "ap"}, b"")
    assert who(result) == ("A", "a")
    assert result.permissions is not None
    assert result.permissions.can_publish(b"x.y")
    assert not result.permissions.can_publish(b"y")
    assert auth.check({"user": "a", "pass": "ap"}, b"").permissions is result.permissions
    assert auth.check({"user": "b", "pass": ""}, b"").permissions is None
    for connect in ({}, {"user": "a", "pass": "gp"}, {"user": "c", "pass": "ap"}, {"user": ["a"], "pass": "ap"}):
        assert refused(auth, connect), connect


def test_no_auth_user_serves_those_without_any_credentials(make) -> None:
    auth = make("no_auth_user: guest\naccounts { A { users: [ {user: guest, password: g}, {user: a, password: p} ] } }")
    assert auth.required
    assert who(auth.check({}, b"")) == ("A", "guest")
    assert who(auth.check({"user": "a", "pass": "p"}, b"")) == ("A", "a")
    for connect in ({"user": "a"}, {"user": "guest", "pass": "x"}, {"auth_token": "x"}, {"pass": "p"}):
        assert refused(auth, connect), connect


def test_nkey_users_sign_the_nonce(make) -> None:
    auth = make(f"authorization {{ users: [ {{nkey: {NKEY}}}, {{user: a, password: p}} ] }}")
    assert auth.nonce_required
    assert who(auth.check({"nkey": NKEY, "sig": sign(NONCE)}, NONCE)) == ("$G", NKEY)
    assert who(auth.check({"user": "a", "pass": "p"}, NONCE)) == ("$G", "a")
    other = encode_user_key(bytes(32))
    assert refused(auth, {"nkey": NKEY, "sig": sign(b"another nonce!!")})
    assert refused(auth, {"nkey": NKEY})
    assert refused(auth, {"nkey": other, "sig": sign(NONCE)})
    # without a nonce there is nothing that a signature proves
    assert refused(auth, {"nkey": NKEY, "sig": sign(b"")}, b"")


def test_a_signature_is_for_one_connection_and_one_key(make) -> None:
    auth = make(f"authorization {{ users: [ {{nkey: {NKEY}}} ] }}")
    for nonce in (NONCE, b"z" * 15):  # each connection has its own
        assert who(auth.check({"nkey": NKEY, "sig": sign(nonce)}, nonce)) == ("$G", NKEY)
    replayed = sign(NONCE)
    for nonce in (b"z" * 15, NONCE[:-1], NONCE + b"a", NONCE.upper(), b""):
        assert refused(auth, {"nkey": NKEY, "sig": replayed}, nonce), nonce
    # An empty signature, one of nothing, one of the key, of its seed's text, or of the other alphabet's text.
    for signed in (b"", NKEY.encode(), PRIVATE.public_key().public_bytes_raw(), base64.b64decode(NONCE + b"=")):
        assert refused(auth, {"nkey": NKEY, "sig": sign(signed)}), signed
    good = PRIVATE.sign(NONCE)
    for bad in bad_signatures(good):
        assert refused(auth, {"nkey": NKEY, "sig": base64.b64encode(bad).decode()}), bad.hex()
    for sig in (5, None, ["x"], "\u0661" * 88, "\ud800", "\x00", "", " " * 88):
        assert refused(auth, {"nkey": NKEY, "sig": sig}), sig
    raw = PRIVATE.public_key().public_bytes_raw()
    names = [
        NKEY.lower(),
        f" {NKEY}",
        f"{NKEY} ",
        f"{NKEY}\n",
        f"{NKEY}========",
        f"{NKEY}\x00",
        NKEY[1:],
        "U",
        "\ud800",
    ]
    for name in (*names, *(encode_key(kind, raw) for kind in "OANCX"), {"a": 1}, [NKEY]):
        assert refused(auth, {"nkey": name, "sig": sign(NONCE)}), name


@pytest.mark.parametrize("kind", "OANCX")
def test_only_keys_of_users_are_users(make, kind: str) -> None:
    raw = PRIVATE.public_key().public_bytes_raw()
    for wrong in (encode_key(kind, raw), NKEY.lower(), f" {NKEY}", NKEY[:-1] + "\u0661"):
        with pytest.raises(ConfigError, match="nkey"):
            make(f'authorization {{ users: [ {{nkey: "{wrong}"}} ] }}')
    assert who(
        make(f'authorization {{ users: [ {{nkey: "{NKEY}"}} ] }}').check({"nkey": NKEY, "sig": sign(NONCE)}, NONCE)
    )


def test_connection_types(make) -> None:
    auth = make("""authorization { users: [
        {user: ws, password: p, allowed_connection_types: [websocket]}
        {user: std, password: p, allowed_connection_types: [STANDARD, MQTT]}
    ] }""")
    assert refused(auth, {"user": "ws", "pass": "p"})
    assert who(auth.check({"user": "std", "pass": "p"}, b"")) == ("$G", "std")
    link = make("authorization { users: [ {user: l, password: p, allowed_connection_types: [LEAFNODE]} ] }")
    assert refused(link, {"user": "l", "pass": "p"})
    assert who(link.check({"user": "l", "pass": "p"}, b"", connection_type="LEAFNODE")) == ("$G", "l")


SYSTEM_ALONE = (
    "accounts { $SYS { users: [ {user: a, password: p} ] } }",
    "accounts { $SYS { users: [ {user: a, password: p}, {user: b, password: p} ] } }",
    "system_account: SYS\naccounts { SYS { users: [ {user: a, password: p} ], limits { max_connections: 5 } } }",
    "accounts { $SYS { users: [ {user: a, password: p} ] } }\nwebsocket { port: -1, no_tls: true }",
    "accounts { $SYS { users: [ {user: a, password: p} ] } }\n"
    "leafnodes { port: -1, authorization { user: l, password: p } }",
)
OTHERS_TOO = (
    "accounts { $SYS { users: [ {user: a, password: p} ] }, A {} }",
    "accounts { $SYS { users: [ {user: a, password: p} ] }, A { users: [ {user: b, password: p} ] } }",
    "accounts { $SYS { users: [ {user: a, password: p} ] } }\nauthorization { users: [ {user: b, password: p} ] }",
    "accounts { $SYS { users: [ {user: a, password: p} ] } }\nauthorization { timeout: 3 }",
    "accounts { $SYS { users: [ {user: a, password: p} ] } }\nauthorization { default_permissions { publish: x } }",
    "accounts { A { users: [ {user: a, password: p} ] } }",
    "system_account: A\naccounts { A { users: [ {user: a, password: p} ] }, $SYS {} }",
)
"""Both lists were asked of nats-server 2.15.2, but for the last one."""


@pytest.mark.parametrize("text", SYSTEM_ALONE)
def test_where_only_the_system_account_has_users_others_are_in_the_global_account(make, text: str) -> None:
    auth = make(text)
    assert auth.required, "INFO says so too, on both servers"
    assert who(auth.check({}, b"")) == ("$G", "")
    assert who(auth.check({"user": "a", "pass": "p"}, b""))[1] == "a"
    wrong = (
        {"user": "a"},
        {"user": "a", "pass": "x"},
        {"user": "zz", "pass": "p"},
        {"auth_token": "p"},
        {"nkey": NKEY},
    )
    for connect in wrong:
        assert refused(auth, connect), connect


@pytest.mark.parametrize("text", OTHERS_TOO)
def test_where_others_are_configured_nobody_comes_without_credentials(make, text: str) -> None:
    auth = make(text)
    assert auth.required and refused(auth, {})
    assert who(auth.check({"user": "a", "pass": "p"}, b""))[1] == "a"


def test_the_system_account_with_nkeys_or_without_users(make) -> None:
    for text in (f"accounts {{ $SYS {{ users: [ {{nkey: {NKEY}}} ] }} }}", "accounts { $SYS {} }"):
        auth = make(text)
        assert who(auth.check({}, b"")) == ("$G", "")
        assert refused(auth, {"user": "a", "pass": "p"})


def test_a_user_on_the_command_line_closes_the_global_account(tmp_path: Path) -> None:
    (tmp_path / "c.conf").write_text(SYSTEM_ALONE[0])
    options = load_file(str(tmp_path / "c.conf"), {})[0]
    assert options.global_is_open
    options.authorization.user, options.authorization.password = "u", "p"
    assert not options.global_is_open and refused(Authenticator(options), {})
