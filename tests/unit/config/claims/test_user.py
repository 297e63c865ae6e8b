"""User JWTs: windows of time, networks, limits."""

from __future__ import annotations

import pytest

from jetcluster.config.claims.rights import Rights
from jetcluster.config.claims.token import ClaimsError
from jetcluster.config.claims.user import decode_user
from tests.signer import Key, part, url_base64
from tests.unit.config.jwts import ACCOUNT, NOON


@pytest.mark.parametrize(
    ("windows", "left"),
    [
        ([], 0.0),
        ([("11:00:00", "13:00:00")], 3600.0),
        ([("11:00:00", "12:30:00"), ("09:00:00", "20:00:00")], 8 * 3600.0),
        ([("13:00:00", "14:00:00")], None),
        ([("12:00:00", "13:00:00")], None),  # begins after its first second, as nats-server's
        ([("11:00:00", "12:00:00")], None),
        ([("22:00:00", "13:00:00")], 3600.0),  # over midnight, and it is after midnight
        ([("11:00:00", "03:00:00")], 15 * 3600.0),  # over midnight, and it is before midnight
        ([("13:00:00", "11:00:00")], None),
    ],
)
def test_windows_of_time(windows: list[tuple[str, str]], left: float | None) -> None:
    assert Rights(times=windows, locale="Asia/Tokyo").seconds_left(NOON) == left


@pytest.mark.parametrize(
    ("sources", "address", "allowed"),
    [
        ([], "", True),
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "11.1.2.3", False),
        (["10.0.0.0/8"], "", False),
        (["10.0.0.0/8"], "somewhere", False),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", True),
        (["10.0.0.0/8", "fe80::/10"], "fe80::1%eth0", True),
        (["0.0.0.0/0"], "::1", False),
        (["10.1.2.3/8"], "10.9.9.9", True),
    ],
)
def test_networks(sources: list[str], address: str, allowed: bool) -> None:
    assert Rights(sources=sources).is_from_allowed(address) is allowed


def test_a_user_of_version_1_has_no_limits_but_those_it_names() -> None:
    key = Key("user").public
    body = {"iss": ACCOUNT.public, "sub": key, "iat": 1, "type": "user", "issuer_account": "A", "nats": {"payload": 5}}
    signer = ACCOUNT.key

    # Version 1 signs the payload alone.
    _, payload, _ = signer.sign(body).split(".")
    text = f"{part({'typ': 'jwt', 'alg': 'ed25519'})}.{payload}.{url_base64(signer.private.sign(payload.encode()))}"
    user = decode_user(text)
    assert (user.rights.payload, user.rights.subscriptions, user.issuer_account) == (5, -1, "A")
    with pytest.raises(ClaimsError, match="V1 signature"):
        decode_user(signer.sign(body))
