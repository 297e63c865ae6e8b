"""JWTs: types, signers, numbers, and tokens that nobody has made."""

from __future__ import annotations

import base64
import json
import random
import time
from functools import partial
from typing import Any

import pytest

from jetcluster.config.claims.account import decode_account
from jetcluster.config.claims.operator import decode_operator
from jetcluster.config.claims.shared import decode_activation
from jetcluster.config.claims.token import ClaimsError, decode, decode_generic
from tests.signer import ROOM, Key, Operator
from tests.unit.config.jwts import ACCOUNT, OPERATOR, OTHER, account_with, activation


@pytest.mark.parametrize(
    "claims",
    [
        {"limits": {**ROOM, "conn": "5"}},
        {"exports": {}},
        {"exports": [1]},
        {"imports": [None]},
        {"signing_keys": [{"kind": "role", "key": "x"}]},
        {"revocations": {"*": "yesterday"}},
        {"mappings": []},
        {"default_permissions": {"pub": {"allow": "a"}}},
        {"tags": [1]},
    ],
)
def test_claims_of_other_types_are_not_believed(claims: dict[str, Any]) -> None:
    with pytest.raises(ClaimsError):
        decode_account(OPERATOR.key.token(ACCOUNT.public, "A", {"type": "account", **claims}))


def test_who_may_sign_what() -> None:
    for text, kind in (
        (ACCOUNT.key.token(OPERATOR.key, "O", {"type": "operator"}), "operator"),
        (Key("user").token(ACCOUNT.public, "A", {"type": "account"}), "account"),
        (OPERATOR.key.token(Key("user"), "U", {"type": "user"}), "user"),
        (Key("user").token(ACCOUNT.public, "", {"type": "activation"}), "activation"),
    ):
        with pytest.raises(ClaimsError, match="may not issue"):
            decode(text, kind)
    assert decode_operator(OPERATOR.jwt).keys == [OPERATOR.key.public]
    assert decode_activation(activation(OTHER.key)).exporter == OTHER.public


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 1e300, 10**400, 1.5])
def test_numbers_that_no_other_reader_would_take(number: float) -> None:
    with pytest.raises(ClaimsError):
        decode_account(account_with({"conn": number}).jwt)
    with pytest.raises(ClaimsError):
        decode_operator(OPERATOR.key.token(OPERATOR.key, "O", {"type": "operator"}, exp=number))


def test_tokens_that_nobody_has_made_are_refused_soon() -> None:
    """Noise, other algorithms, numbers and nestings of any size, and mutated tokens: nothing but `ClaimsError`."""
    rng = random.Random(7)
    operator = Operator()
    account = operator.account("A")
    real = [operator.jwt, account.jwt, account.user().jwt]

    def coded(value: object) -> str:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    bodies = [
        coded({}),
        coded([]),
        coded(1),
        coded(b"["),
        coded(b"[" * 50_000),
        coded(b'{"a":' * 50_000),
        coded(b"\xff"),
        "",
        "!",
        coded(b"1" * 6000),
        coded(b'{"exp":' + b"9" * 6000 + b"}"),
        coded(b'{"iss":"\\ud800"}'),
        coded({"iss": "O" * 56}),
        coded({"iss": account.public, "sub": 7}),
        coded({"iss": "", "nats": None}),
        coded(b'{"iss":1e999}'),
    ]
    algorithms = ["none", "", "HS256", "ed25519", "ed25519-nkey", None, 1, [], {}]
    tried = []
    for token in real:
        _, body, signature = token.split(".")
        for algorithm in algorithms:
            head = coded({"typ": "JWT", "alg": algorithm})
            tried += [f"{head}.{one}.{said}" for one in bodies for said in (signature, "", coded(bytes(64)))]
            tried += [f"{head}.{body}.{said}" for said in ("", signature[:-2] + "AA", coded(bytes(64)))]
        for _ in range(200):
            text = bytearray(token.encode())
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(text))
                text[at : at + rng.randrange(8)] = rng.randbytes(rng.randrange(8))
            tried.append(text.decode("latin-1"))
    began = time.process_time()
    for text in tried:
        for read in (*(partial(decode, kind=kind) for kind in ("operator", "account", "user")), decode_generic):
            if text not in real:
                with pytest.raises(ClaimsError):
                    read(text)
    assert time.process_time() - began < 30
    assert [decode(text, kind).kind for text, kind in zip(real, ("operator", "account", "user"), strict=True)]
