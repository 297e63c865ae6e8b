"""Options, variables and contexts of the `nats` tool, as a command's connection understands them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jetcluster.client.contexts import ContextError, Wanted, context_names, server_options
from jetcluster.client.credentials import CredentialsError, Secrets
from testkit.harness import find_nats_cli
from tests.unit.client.test_credentials import PUBLIC, SEED

CREDS = (
    "-----BEGIN NATS USER JWT-----\neyJ0.a.b\n------END NATS USER JWT------\n\n"
    f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
)


def written(home: Path, name: str, selected: bool = False, **fields: Any) -> dict[str, str]:
    """Writes a context, and returns the environment that finds it."""
    folder = home / "nats" / "context"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(fields))
    if selected:
        (folder.parent / "context.txt").write_text(name)
    return {"XDG_CONFIG_HOME": str(home), "HOME": "/home/me"}


def test_without_anything_it_is_the_server_of_this_machine(tmp_path: Path) -> None:
    found = server_options(Wanted(), {"HOME": str(tmp_path)})
    assert found.servers == ("nats://127.0.0.1:4222",) and found.credentials.fields("") == {}
    assert (found.api_prefix, found.inbox_prefix, found.connect_timeout) == ("$JS.API.", "_INBOX", 5.0)


def test_all_fields_of_the_selected_context(tmp_path: Path) -> None:
    environment = written(
        tmp_path, "prod", True, url="nats://a:1, tls://b:2", user="u", password="p", cert="~/c.pem", key="$KEYS/k.pem",
        ca="file:///ca.pem", tls_first=True, inbox_prefix="_I", jetstream_domain="hub", description="x", nsc="",
    )  # fmt: skip
    found = server_options(Wanted(), environment | {"KEYS": "/keys"})
    assert found.servers == ("nats://a:1", "tls://b:2")
    assert found.credentials == Secrets(
        user="u", password="p", tls_cert="/home/me/c.pem", tls_key="/keys/k.pem", tls_ca="/ca.pem", tls_first=True
    )
    assert (found.api_prefix, found.inbox_prefix) == ("$JS.hub.API.", "_I")
    assert server_options(Wanted(no_context=True), environment).servers == ("nats://127.0.0.1:4222",)


def test_what_is_given_goes_before_the_context(tmp_path: Path) -> None:
    environment = written(
        tmp_path, "prod", True, url="nats://a:1", creds="/x.creds", ca="/ca.pem", jetstream_api_prefix="JS.x"
    )
    given = Wanted(server="nats://b:2", user="u", password="p", domain="d", inbox_prefix="_J", ca="/other.pem")
    found = server_options(given, environment)
    assert found.servers == ("nats://b:2",) and found.credentials == Secrets(
        user="u", password="p", tls_ca="/other.pem"
    )
    assert (found.api_prefix, found.inbox_prefix) == ("$JS.d.API.", "_J")
    assert server_options(Wanted(), environment).api_prefix == "JS.x."
    assert server_options(Wanted(creds="/y.creds"), environment).credentials == Secrets(
        creds_file="/y.creds", tls_ca="/ca.pem"
    )


def test_a_password_alone_goes_to_the_user_of_the_context(tmp_path: Path) -> None:
    environment = written(tmp_path, "prod", True, user="u", password="old")
    assert server_options(Wanted(password="new"), environment).credentials == Secrets(user="u", password="new")
    assert server_options(Wanted(user="tok"), environment).credentials == Secrets(token="tok")


def test_the_order_of_credentials_and_a_user_without_password(tmp_path: Path) -> None:
    everything = {"creds": "/c", "nkey": "/n", "user_jwt": "j", "user_seed": SEED, "token": "t"}
    expected: list[tuple[str, Secrets]] = [
        ("creds", Secrets(creds_file="/c")), ("nkey", Secrets(nkey_file="/n")),
        ("user_jwt", Secrets(jwt="j", seed=SEED)), ("token", Secrets(token="t")),
    ]  # fmt: skip
    for kind, login in expected:
        assert server_options(Wanted(), written(tmp_path, "x", True, **everything)).credentials == login
        del everything[kind]
    assert server_options(Wanted(), written(tmp_path, "x", True, user="u")).credentials == Secrets(user="u")


def test_secrets_by_reference(tmp_path: Path) -> None:
    environment = written(tmp_path, "x", True, user="u", password="env://PW") | {"PW": "p w", "C": CREDS}
    assert server_options(Wanted(), environment).credentials.fields("") == {"user": "u", "pass": "p w"}
    data = "data:;base64," + base64.b64encode(CREDS.encode()).decode()
    for creds in (data, "env://C"):
        login = server_options(Wanted(creds=creds), environment).credentials
        assert login == Secrets(jwt="eyJ0.a.b", seed=SEED) and login.fields("n")["jwt"] == "eyJ0.a.b"
        assert SEED not in repr(login)
    (tmp_path / "seed").write_text(f"{SEED}\n")
    for nkey in (f"file://{tmp_path}/seed", f"{tmp_path}/seed", "env://S"):
        login = server_options(Wanted(nkey=nkey), environment | {"S": SEED}).credentials
        assert login.fields("nonce")["nkey"] == PUBLIC
    with pytest.raises(CredentialsError, match="creds holds no NATS USER JWT"):
        server_options(Wanted(creds="env://PW"), environment)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"nsc": "nsc://O/A/U"}, "nsc: it would start the program nsc"),
        ({"creds": "nsc://O/A/U"}, "creds with nsc://: it would start"),
        ({"user": "u", "password": "op://v/i/f"}, "password with op://: it would start 1Password"),
        ({"socks_proxy": "socks5://h"}, "socks_proxy: connections through"),
        ({"token": "env://NOT_THERE"}, "token: environment variable NOT_THERE is not set"),
        ({"creds": "data:;base64,%%"}, "creds: a data: reference holds no text"),
        ({"creds": "data:text/plain,x"}, "creds: a data: reference must be base64"),
        ({"ca": "env://CA"}, "ca: only a path names a TLS file, not env:"),
        ({"cert": "/c.pem"}, "needs its key"),
        ({"url": "ws://h:80"}, "'ws://h:80' is no URL"),
        ({"url": "nats://u:secret@h:x"}, "'nats://h:x' is no URL"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path, fields: dict[str, str], reason: str) -> None:
    with pytest.raises(ContextError, match=reason) as refused:
        server_options(Wanted(), written(tmp_path, "x", True, **fields))
    assert "u:secret" not in str(refused.value)


def test_an_unknown_context_names_the_known_ones(tmp_path: Path) -> None:
    environment = written(tmp_path, "one", url="nats://a:1")
    written(tmp_path, "two")
    with pytest.raises(ContextError, match=r"no context 'three'; in .* there are: one, two"):
        server_options(Wanted(context="three"), environment)
    with pytest.raises(ContextError, match=r"no context '../one'"):
        server_options(Wanted(context="../one"), environment)
    (tmp_path / "nats" / "context.txt").write_text("gone\n")
    with pytest.raises(ContextError, match=r"no context 'gone', which .*context.txt selects"):
        server_options(Wanted(), environment)
    assert server_options(Wanted(context="one"), environment).servers == ("nats://a:1",)
    path = str(tmp_path / "nats" / "context" / "one.json")
    assert server_options(Wanted(context=path), {}).servers == ("nats://a:1",)
    assert context_names(environment) == ["one", "two"] and context_names({"HOME": str(tmp_path)}) == []
    (tmp_path / "nats" / "context" / "two.json").write_text("{")
    with pytest.raises(ContextError, match="is no JSON"):
        server_options(Wanted(context="two"), environment)


@pytest.mark.interop
def test_contexts_that_the_nats_tool_has_written(tmp_path: Path) -> None:
    nats = find_nats_cli()
    if nats is None:
        pytest.skip("the nats tool is missing (make tools)")
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    (tmp_path / "me.creds").write_text(CREDS)
    (tmp_path / "ca.pem").write_text("x")

    def run(*words: str) -> None:
        subprocess.run([nats, *words], env={**os.environ, **environment}, check=True, capture_output=True, timeout=20)

    run("context", "add", "one", "-s", "nats://a:1,nats://b:2", "--creds", f"{tmp_path}/me.creds", "--js-domain", "hub",
        "--tlsca", f"{tmp_path}/ca.pem", "--tlsfirst", "--inbox-prefix", "_I", "--select")  # fmt: skip
    found = server_options(Wanted(), environment)
    assert found.servers == ("nats://a:1", "nats://b:2") and (found.domain, found.inbox_prefix) == ("hub", "_I")
    assert found.credentials == Secrets(creds_file=f"{tmp_path}/me.creds", tls_ca=f"{tmp_path}/ca.pem", tls_first=True)
    run("context", "add", "two", "--embed", "--creds", f"{tmp_path}/me.creds")
    run("context", "add", "three", "--user", "tok")
    run("context", "add", "four", "--user", "u", "--password", "p")
    run("context", "select", "two")
    assert server_options(Wanted(), environment).credentials == Secrets(jwt="eyJ0.a.b", seed=SEED)
    assert server_options(Wanted(context="three"), environment).credentials == Secrets(token="tok")
    assert server_options(Wanted(context="four"), environment).credentials == Secrets(user="u", password="p")
