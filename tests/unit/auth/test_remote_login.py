"""Logging in at a hub with an nkey or a file of credentials."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from jetcluster.auth.remote_login import LoginError, signed_login
from jetcluster.auth.secrets import is_signed
from jetcluster.config.claims.token import undecorated
from jetcluster.config.nkeys import decode_user_key, decode_user_seed

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
USER = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
NONCE = b"abcdefghijklmno"
CREDENTIALS = f"""-----BEGIN NATS USER JWT-----
ey-J0.ey_J1.c2ln
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------

*************************************************************
"""


def test_nothing_to_sign_with() -> None:
    assert signed_login("", "", NONCE) == {}


def test_an_nkey_signs_the_nonce() -> None:
    login = signed_login("", SEED, NONCE)
    assert login["nkey"] == USER
    assert is_signed(decode_user_key(USER), NONCE, login["sig"])
    assert not is_signed(decode_user_key(USER), NONCE[1:], login["sig"])


@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_a_file_of_credentials(tmp_path: Path, line: str) -> None:
    file = tmp_path / "user.creds"
    file.write_bytes(CREDENTIALS.replace("\n", line).encode())
    login = signed_login(str(file), "", NONCE)
    assert set(login) == {"jwt", "sig"}
    assert login["jwt"] == "ey-J0.ey_J1.c2ln"
    assert is_signed(decode_user_key(USER), NONCE, login["sig"])


@pytest.mark.parametrize("text", ["", "nothing", CREDENTIALS.replace(SEED, SEED[:-1] + "A"), CREDENTIALS[:60], "\xe9"])
def test_a_file_that_is_no_such_thing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "user.creds"
    file.write_bytes(text.encode())
    with pytest.raises(LoginError) as error:
        signed_login(str(file), "", NONCE)
    assert SEED[:-1] not in str(error.value)
    with pytest.raises(LoginError, match="No such file"):
        signed_login(f"{file}.not", "", NONCE)


@pytest.mark.parametrize(
    "text",
    ["-" * 65_536, "---\n" * 16_000, "-----BEGIN\n" * 6000, "-----BEGIN X-----\n" * 3600, "---a---\n" + " " * 60_000],
    ids=range(5),
)
def test_a_file_of_dashes_takes_no_time(tmp_path: Path, text: str) -> None:
    """nats.go's regular expression takes minutes."""
    file = tmp_path / "user.creds"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(LoginError):
        signed_login(str(file), "", NONCE)
    assert undecorated(text * 10) == (text * 10).strip()
    assert time.process_time() - began < 2


def test_mutated_credentials_log_in_or_do_not(tmp_path: Path) -> None:
    rng = random.Random(7)
    file = tmp_path / "user.creds"
    outcomes = set()
    for _ in range(500):
        text = bytearray(CREDENTIALS.encode())
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(text))
            piece = rng.choice([b"", b"---", b"\n", b"\xff", b"\0", b".", b"-----BEGIN", b"="])
            text[at : at + rng.randrange(4)] = piece
        file.write_bytes(bytes(text))
        try:
            outcomes.add(tuple(sorted(signed_login(str(file), "", NONCE))))
        except LoginError as error:
            outcomes.add(("refused",))
            assert SEED not in str(error)
    assert outcomes == {("jwt", "sig"), ("refused",)}


@pytest.mark.parametrize("text", ["", "S", USER, SEED[1:], SEED.lower(), SEED + "A"])
def test_what_is_no_seed(text: str) -> None:
    with pytest.raises(ValueError, match=r"base32|checksum|not a seed"):
        decode_user_seed(text)
