"""Logging in at a hub with an nkey or a file of credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.auth.remote_login import LoginError, signed_login
from jetcluster.auth.secrets import is_signed
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


@pytest.mark.parametrize("text", ["", "S", USER, SEED[1:], SEED.lower(), SEED + "A"])
def test_what_is_no_seed(text: str) -> None:
    with pytest.raises(ValueError, match=r"base32|checksum|not a seed"):
        decode_user_seed(text)
