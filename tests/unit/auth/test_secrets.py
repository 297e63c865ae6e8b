from __future__ import annotations

import base64

import bcrypt
import pytest

from jetcluster.auth.secrets import PasswordChecker, decode_signature, is_signed
from testkit.twins.time import SeededRng


def test_plain_passwords() -> None:
    checker = PasswordChecker(SeededRng(1))
    assert checker.matches("s3cr€t", "s3cr€t")
    assert not checker.matches("secret", "Secret")
    assert checker.matches("", "")
    assert not checker.matches("$2 is not a hash", "x")


@pytest.mark.parametrize("prefix", [b"2a", b"2b"])
def test_bcrypt_passwords(prefix: bytes) -> None:
    checker = PasswordChecker(SeededRng(1))
    stored = bcrypt.hashpw(b"right", bcrypt.gensalt(4, prefix)).decode()
    assert not checker.matches(stored, "wrong")
    assert not checker.matches(stored, stored)
    assert checker.matches(stored, "right")
    assert checker.matches(stored, "right")
    assert not checker.matches(stored, "wrong")


def test_right_bcrypt_passwords_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = PasswordChecker(SeededRng(1))
    stored = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    calls: list[bytes] = []
    real = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda given, hashed: calls.append(given) or real(given, hashed))
    assert checker.matches(stored, "right")
    assert checker.matches(stored, "right")
    assert not checker.matches(stored, "wrong")
    assert not checker.matches(stored, "wrong")
    assert calls == [b"right", b"wrong", b"wrong"]


def test_odd_bcrypt_input_is_a_refusal_and_no_crash() -> None:
    checker = PasswordChecker(SeededRng(1))
    assert not checker.matches("$2a$04$short", "x")
    stored = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    assert checker.matches(stored, "x" * 80)


def test_signatures_in_both_alphabets() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key = private.public_key().public_bytes_raw()
    raw = private.sign(b"the nonce 12345")
    for text in (
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode(),
        base64.b64encode(raw).decode(),
    ):
        assert decode_signature(text) == raw
        assert is_signed(key, b"the nonce 12345", text)
        assert not is_signed(key, b"the nonce 12346", text)
    assert not is_signed(key, b"the nonce 12345", "!!!")
    assert not is_signed(key, b"the nonce 12345", "")


def test_the_slow_part_can_be_done_before() -> None:
    stored = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    checker = PasswordChecker()
    assert checker.slow_part("plain", "right") is None
    for given, right in (("right", True), ("wrong", False)):
        work = checker.slow_part(stored, given)
        assert work is not None
        work()
        assert checker.slow_part(stored, given) is None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bcrypt, "checkpw", None)
            assert checker.matches(stored, given) is right
    assert checker.slow_part(stored, "right") is None
    assert checker.slow_part(stored, "wrong") is None  # who tries again and again costs one check
    assert checker.slow_part(stored, "Right") is not None
