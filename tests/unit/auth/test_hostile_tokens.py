"""Tokens and signatures as nobody's tools make them: each is a refusal, soon, and what is only odd still comes in."""

from __future__ import annotations

import base64
import time

import pytest

from jetcluster.auth.authenticator import AuthError
from jetcluster.auth.operator_mode import OperatorAuthenticator
from tests.operator_cases import Cases
from tests.signer import Key, url_base64
from tests.unit.auth.test_operator_mode import HERE, NONCE, authenticator, load

ORDER = 2**252 + 27742317777372353535851937790883648493
"""Order of Ed25519's base point: S and S + ORDER say the same, and only the first is a signature (RFC 8032 5.1.7)."""
SMALL = [
    bytes([1]) + bytes(31),  # the neutral element
    bytes([0xEC]) + b"\xff" * 30 + b"\x7f",  # of order 2
    bytes(32),  # of order 4
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),  # of order 8
    b"\xee" + b"\xff" * 30 + b"\x7f",  # the neutral element, not reduced
]
"""Points for which a signature would say nothing about who made it."""
HEADER = b'{"typ":"JWT","alg":"ed25519-nkey"}'
SECONDS = 1.0
"""Processor time, at most, on a machine that others use as well; the largest token takes 30 ms."""


@pytest.fixture(scope="module")
def cases() -> Cases:
    return Cases()


@pytest.fixture(scope="module")
def auth(cases: Cases, tmp_path_factory: pytest.TempPathFactory) -> OperatorAuthenticator:
    return authenticator(load(tmp_path_factory.mktemp("operator"), cases.config))


def comes_in(auth: OperatorAuthenticator, connect: dict[str, object]) -> bool:
    began = time.process_time()
    try:
        auth.check(connect, NONCE, HERE)
    except AuthError as error:
        assert error.text in ("Authorization Violation", "User Authentication Expired")
        return False
    finally:
        assert time.process_time() - began < SECONDS
    return True


def written(
    cases: Cases, top: bytes = b"", nats: bytes = b"", header: bytes = HEADER, user: bytes = b"KEY"
) -> dict[str, object]:
    """Log-in of a user whose JWT the account has signed over these very bytes. `user`: KEY stands for the user's
    key."""
    key, signer = Key("user"), cases.plain.key
    about = user.replace(b"KEY", key.public.encode())
    claims = b'"type":"user","version":2,"subs":-1,"data":-1,"payload":-1' + nats
    body = b'{%b"iss":"%b","sub":"%b","iat":1,"nats":{%b}}' % (top, signer.public.encode(), about, claims)
    signed = f"{url_base64(header)}.{url_base64(body)}"
    jwt = f"{signed}.{url_base64(signer.private.sign(signed.encode()))}"
    return {"jwt": jwt, "sig": key.signature(NONCE.decode()).decode()}


def nested(count: int, opens: bytes = b"[", closes: bytes = b"]") -> bytes:
    return b'"x":' + opens * count + b"1" + closes * count + b","


ODD: dict[str, dict[str, bytes]] = {
    "as it should be": {},
    "time as another language writes it": {"top": b'"exp":1.0e12,'},
    "ends with the last second there is": {"top": b'"exp":9223372036854775807,'},
    "a key twice: the last one counts": {"top": b'"exp":1,"exp":0,'},
    "nested": {"top": nested(200)},
    "names of every kind": {"top": '"name":"ж😀\u202e\\u0000\\r\\n",'.encode()},
    "large": {"top": b'"name":"' + b"n" * 700_000 + b'",'},
    "header in other letters": {"header": b'{"typ":"jwt","alg":"ED25519-NKEY"}'},
    "many permissions": {"nats": b',"pub":{"allow":[' + b",".join(b'"a.%d"' % n for n in range(2000)) + b"]}"},
}
HOSTILE: dict[str, dict[str, bytes]] = {
    "time in the past as a float": {"top": b'"exp":1.0e2,'},
    "the last of a key twice is in the past": {"top": b'"exp":0,"exp":1,'},
    "half a second": {"top": b'"exp":1000000000000.5,'},
    "more than a float holds": {"top": b'"exp":1e400,'},
    "not a number": {"top": b'"exp":NaN,'},
    "less than nothing": {"top": b'"exp":-Infinity,'},
    "time as a string": {"top": b'"exp":"99999999999",'},
    "time as a truth": {"top": b'"exp":true,'},
    "time beyond 64 bits": {"top": b'"exp":9223372036854775808,'},
    "5,000 digits": {"top": b'"x":' + b"9" * 5000 + b","},
    "10,000 lists in each other": {"top": nested(10_000)},
    "100,000 objects in each other": {"top": nested(100_000, b'{"a":', b"}")},
    "10,000 lists in the header": {"header": HEADER[:-1] + b"," + nested(10_000)[:-1] + b"}"},
    "more than a megabyte": {"top": b'"name":"' + b"n" * 1_100_000 + b'",'},
    "half a character": {"top": b'"name":"\\ud800",'},
    "issued by somebody else, if the last one counts": {"nats": b'},"iss":"OABC","nats":{"type":"user","version":2'},
    "algorithm none": {"header": b'{"typ":"JWT","alg":"none"}'},
    "algorithm none in other letters": {"header": b'{"typ":"JWT","alg":"NoNe"}'},
    "algorithm RS256": {"header": b'{"typ":"JWT","alg":"RS256"}'},
    "algorithm HS256": {"header": b'{"typ":"JWT","alg":"HS256"}'},
    "algorithm of others for the same keys": {"header": b'{"typ":"JWT","alg":"EdDSA"}'},
    "algorithm with more behind it": {"header": b'{"typ":"JWT","alg":"ed25519-nkey\\u0000"}'},
    "no algorithm": {"header": b'{"typ":"JWT"}'},
    "algorithm that is a list": {"header": b'{"typ":"JWT","alg":["ed25519-nkey"]}'},
    "the last algorithm is none": {"header": b'{"typ":"JWT","alg":"ed25519-nkey","alg":"none"}'},
    "another type": {"header": b'{"typ":"at+jwt","alg":"ed25519-nkey"}'},
    "no type": {"header": b'{"alg":"ed25519-nkey"}'},
    "blank before the key": {"user": b" KEY"},
    "line end behind the key": {"user": b"KEY\\n"},
    "padding behind the key": {"user": b"KEY========"},
    "nobody's key": {"user": b"x"},
    "network that is a number": {"nats": b',"src":[5]'},
    "times that are no list": {"nats": b',"times":{"a":1}'},
    "zone outside of the zones": {
        "nats": b',"times":[{"start":"00:00:00","end":"23:59:59"}],"times_location":"../../etc/passwd"'
    },
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tokens_come_in(cases: Cases, auth: OperatorAuthenticator, name: str) -> None:
    assert comes_in(auth, written(cases, **ODD[name]))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokens_do_not(cases: Cases, auth: OperatorAuthenticator, name: str) -> None:
    for _ in range(2):
        assert not comes_in(auth, written(cases, **HOSTILE[name]))


def test_a_key_in_small_letters_is_none(cases: Cases, auth: OperatorAuthenticator) -> None:
    key = Key("user")
    jwt = cases.plain.key.token(key.public.lower(), "u", {"type": "user", "subs": -1, "data": -1, "payload": -1})
    assert not comes_in(auth, {"jwt": jwt, "sig": key.signature(NONCE.decode()).decode()})


@pytest.mark.parametrize("kind", ["account", "operator"])
def test_a_key_of_another_kind_is_no_users(cases: Cases, auth: OperatorAuthenticator, kind: str) -> None:
    key = Key(kind)
    jwt = cases.plain.key.token(key.public, "u", {"type": "user", "subs": -1, "data": -1, "payload": -1})
    assert not comes_in(auth, {"jwt": jwt, "sig": key.signature(NONCE.decode()).decode()})


def beyond_the_order(signature: bytes) -> bytes:
    return signature[:32] + (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")


def bad_signatures(signature: bytes) -> list[bytes]:
    """Made of a right one."""
    point, scalar = signature[:32], signature[32:]
    return [
        beyond_the_order(signature),
        *(signature[:63], signature + b"\x00", signature * 2, scalar + point, bytes(64), b"\xff" * 64),
        *(small + bytes(32) for small in SMALL),
        *(small + scalar for small in SMALL),
        *(point + bytes(32), point + ORDER.to_bytes(32, "little")),
    ]


def test_signatures_of_the_nonce(cases: Cases, auth: OperatorAuthenticator) -> None:
    user = cases.plain.user()
    good = user.key.private.sign(NONCE)
    assert comes_in(auth, {"jwt": user.jwt, "sig": base64.b64encode(good).decode()})
    assert comes_in(auth, {"jwt": user.jwt, "sig": url_base64(good)})
    for bad in bad_signatures(good):
        assert not comes_in(auth, {"jwt": user.jwt, "sig": base64.b64encode(bad).decode()}), bad.hex()
    for odd in (5, None, True, ["x"], {"a": 1}, "\u0661" * 88, "\ud800", " " * 88, "\x00", "=" * 88, "A" * 4000):
        assert not comes_in(auth, {"jwt": user.jwt, "sig": odd}), odd
    for odd in (5, ["x"], "\ud800.a.b", "..", "a.b.c.d", "\x00"):
        assert not comes_in(auth, {"jwt": odd, "sig": url_base64(good)}), odd


def test_signatures_of_a_token(cases: Cases, auth: OperatorAuthenticator) -> None:
    user = cases.plain.user()
    head, _, signature = user.jwt.rpartition(".")
    good = base64.urlsafe_b64decode(signature + "==")
    connect = user.connect(NONCE)
    for bad in bad_signatures(good):
        assert not comes_in(auth, {**connect, "jwt": f"{head}.{url_base64(bad)}"}), bad.hex()
    assert comes_in(auth, {**connect})


def test_a_token_that_says_nothing_is_no_way_to_another_account(cases: Cases, auth: OperatorAuthenticator) -> None:
    """An account signs for itself alone: the account that a token names must know its issuer."""
    key = Key("user")
    for signer in (cases.signing.key, cases.signing_key, cases.scoped_key, cases.operator.key, Key("account")):
        claims = {"type": "user", "subs": -1, "data": -1, "payload": -1, "issuer_account": cases.plain.public}
        connect = {"jwt": signer.token(key.public, "u", claims), "sig": key.signature(NONCE.decode()).decode()}
        assert not comes_in(auth, connect)
    own = cases.signing.user(signer=cases.signing_key)
    assert auth.check(own.connect(NONCE), NONCE, HERE).account == cases.signing.public


@pytest.mark.parametrize(
    "widened",
    [
        {"pub": {"allow": [">"]}}, {"sub": {"allow": [">"]}}, {"resp": {"max": 1, "ttl": 1}}, {"subs": -1},
        {"bearer_token": True}, {"src": ["0.0.0.0/0"]}, {"allowed_connection_types": ["STANDARD"]},
        {"times": [{"start": "00:00:00", "end": "23:59:59"}]}, {"proxy_required": True},
    ],
    ids=lambda widened: next(iter(widened)),
)  # fmt: skip
def test_a_scope_is_not_widened(cases: Cases, auth: OperatorAuthenticator, widened: dict[str, object]) -> None:
    assert not comes_in(auth, cases.signing.scoped("u", cases.scoped_key, **widened).connect(NONCE))
    assert comes_in(auth, cases.signing.scoped("u", cases.scoped_key, tags=["team:a"]).connect(NONCE))
