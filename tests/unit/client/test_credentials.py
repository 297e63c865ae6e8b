"""Users, passwords, nkeys and JWTs of a connection."""

from __future__ import annotations

import pickle

import pytest

from jetcluster.client.connection import Connection
from jetcluster.client.credentials import Credentials, CredentialsError, Secrets, open_seed
from tests.unit.client.fake_server import Peer

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
"""The pair of NATS's own documentation."""


def test_secrets_come_from_variables_and_files(tmp_path, monkeypatch):
    monkeypatch.setenv("JC_PW", "p w")
    assert Credentials(user="u", password_env="JC_PW").fields("") == {"user": "u", "pass": "p w"}
    file = tmp_path / "token"
    file.write_text("t0ken\n")
    assert Credentials(token_file=str(file)).fields("") == {"auth_token": "t0ken"}
    with pytest.raises(CredentialsError, match="JC_MISSING"):
        Credentials(user="u", password_env="JC_MISSING").fields("")
    assert pickle.loads(pickle.dumps(Credentials(user="u"))) == Credentials(user="u")


def test_nkeys_and_creds_sign_the_nonce(tmp_path):
    _, public = open_seed(SEED, "test")
    assert public == PUBLIC
    file = tmp_path / "user.nk"
    file.write_text(f"# comment\n{SEED}\n")
    fields = Credentials(nkey_file=str(file)).fields("nonce")
    assert fields["nkey"] == PUBLIC and len(fields["sig"]) == 86
    creds = tmp_path / "user.creds"
    creds.write_text(
        "-----BEGIN NATS USER JWT-----\neyJ0.a.b\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
    )
    assert Credentials(creds_file=str(creds)).fields("nonce") == {"jwt": "eyJ0.a.b", "sig": fields["sig"]}
    file.write_text("nothing")
    with pytest.raises(CredentialsError, match="no user nkey seed"):
        Credentials(nkey_file=str(file)).fields("n")


def test_the_password_goes_into_connect(monkeypatch):
    monkeypatch.setenv("JC_PW", "secret")
    with Peer() as peer:
        Connection([peer.url], credentials=Credentials(user="me", password_env="JC_PW")).close()
        Connection([peer.url.replace("//", "//you:p%40ss@")]).close()
        assert [(c["user"], c["pass"]) for c in peer.connects] == [("me", "secret"), ("you", "p@ss")]


def test_a_login_holds_its_secrets_and_shows_none():
    for login, fields in (
        (Secrets(user="u", password="secret"), {"user": "u", "pass": "secret"}),
        (Secrets(user="u"), {"user": "u", "pass": ""}),
        (Secrets(token="secret"), {"auth_token": "secret"}),
        (Secrets(jwt="secret"), {"jwt": "secret"}),
        (Secrets(), {}),
    ):
        assert login.fields("nonce") == fields and "secret" not in repr(login)
    by_seed = Secrets(seed=SEED).fields("nonce")
    assert by_seed["nkey"] == PUBLIC and SEED not in repr(Secrets(seed=SEED))
    assert Secrets(jwt="j", seed=SEED).fields("nonce") == {"jwt": "j", "sig": by_seed["sig"]}
