"""The `leafnodes` block."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.changes import changed_fields
from jetcluster.config.lexer import ConfigError
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import LeafUserOptions
from testkit.certificates import Authority
from tests.unit.config.test_load import error_of, load

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
USER = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def test_a_hub() -> None:
    leafnodes = load("leafnodes { listen: '127.0.0.1:7422', no_advertise: true, reconnect: '3s' }\n").leafnodes
    assert (leafnodes.host, leafnodes.port, leafnodes.no_advertise, leafnodes.reconnect) == (
        "127.0.0.1",
        7422,
        True,
        3.0,
    )
    assert load("leafnodes { }\n").leafnodes.port == 0


def test_who_may_connect() -> None:
    one = load("leafnodes { authorization { user: a, password: b, account: X, timeout: 5 } }\naccounts { X {} }\n")
    assert one.leafnodes.users == [LeafUserOptions("a", "b", "X")]
    assert one.leafnodes.auth_timeout == 5.0
    assert problem_of(one) is None
    two = load("leafnodes { authorization { users: [ {user: a, pass: b}, {user: c, pass: d, account: Y} ] } }\n")
    assert two.leafnodes.users == [LeafUserOptions("a", "b"), LeafUserOptions("c", "d", "Y")]
    assert problem_of(two) == 'cannot find local account "Y" specified in leafnode authorization'


def test_remotes() -> None:
    options = load("""
        leafnodes { remotes [
            { url: "nats-leaf://u:p@hub:7422", deny_imports: a.>, deny_exports: [b, c], no_randomize: true }
            { urls: ["nats://one", "nats://two:7000"], account: A, hub: true }
        ] }
        accounts { A { } }
    """)
    first, second = options.leafnodes.remotes
    assert (first.urls, first.account, first.hub) == (["nats-leaf://u:p@hub:7422"], "$G", False)
    assert (first.deny_imports, first.deny_exports, first.no_randomize) == (["a.>"], ["b", "c"], True)
    assert (second.urls, second.account, second.hub) == (["nats://one", "nats://two:7000"], "A", True)
    assert options.inert == []
    assert problem_of(options) is None


def test_a_remote_of_no_account() -> None:
    assert problem_of(load('leafnodes { remotes [ {url: "nats://x:1", account: Z} ] }\n')) == (
        'cannot find local account "Z" specified in leafnode remote'
    )


@pytest.mark.parametrize("url", ["nats-leaf://x:1", "leaf://x:1", "tls://u:p@x:1", "x:1", "x", "leaf://x"])
def test_a_scheme_says_nothing_but_whether_there_is_tls(url: str) -> None:
    """nats.c and nats.js write leaf://."""
    assert load(f'leafnodes {{ remotes [ {{url: "{url}"}} ] }}\n').leafnodes.remotes[0].urls == [url]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("leafnodes { tls { ca_file: x } }", "tls of a port needs cert_file and key_file"),
        ("leafnodes { tls { cert_file: x, key_file: y } }", "open x: no such file or directory"),
        ("leafnodes { authorization { nkey: x } }", "Not a valid public nkey"),
        ('leafnodes { remotes [ {url: "tls://x:1", tls { ca_file: x } } ] }', "open x: no such file or directory"),
        ('leafnodes { remotes [ {url: "tls://x:1", tls { ocsp_peer: true } } ] }', "ocsp_peer is not"),
        ('leafnodes { remotes [ {url: "nats://x:1", credentials: "f", nkey: SEED } ] }', "both creds and nkey"),
        ('leafnodes { remotes [ {url: "ws://x:1"} ] }', "ws links are not supported"),
        ('leafnodes { remotes [ {url: "nats://x:y"} ] }', "error parsing leafnode url"),
        ("leafnodes { remotes [ {account: A} ] }", "leafnode remote without a url"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, error: str) -> None:
    assert error in error_of(text.replace("SEED", SEED) + "\n")


def test_a_bad_seed_is_refused_and_not_shown() -> None:
    bad = SEED[:-1] + ("A" if SEED[-1] != "A" else "B")
    error = error_of(f'leafnodes {{ remotes [ {{url: "nats://x:1", nkey: "{bad}"}} ] }}\n')
    assert "Remote leafnode nkey is not a valid seed" in error
    assert bad not in error


def test_what_a_remote_logs_in_with(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = load(f"""leafnodes {{
        listen: 7422, {authority.tls("hub", ", verify: true")}
        authorization {{ nkey: {USER}, account: A }}
        remotes [
            {{ url: "tls://one", credentials: "/some.creds", tls {{ ca_file: "{authority.file}", insecure: true }} }}
            {{ url: "nats://two", nkey: {SEED} }}
        ]
    }}
    accounts {{ A {{ }} }}
    """)
    leafnodes = options.leafnodes
    assert leafnodes.tls is not None
    assert (leafnodes.tls.verify, leafnodes.tls.ca_file) == (True, str(authority.file))
    assert leafnodes.users == [LeafUserOptions("", "", "A", USER)]
    one, two = leafnodes.remotes
    assert one.tls is not None
    assert (one.credentials, one.tls.insecure, one.tls.cert_file) == ("/some.creds", True, "")
    assert (two.nkey, two.tls) == (SEED, None)
    assert SEED not in repr(options)
    assert "tls insecure" in "".join(options.warnings)


def test_a_reload_that_changes_who_may_connect_is_refused_without_showing_passwords() -> None:
    old = load("leafnodes { port: 1, authorization { user: u, password: secret } }\n")
    with pytest.raises(ConfigError) as refused:
        changed_fields(old, load("leafnodes { port: 1, authorization { user: u, password: secret2 } }\n"))
    assert str(refused.value) == 'config reload not supported for LeafNode: field "Users"'
