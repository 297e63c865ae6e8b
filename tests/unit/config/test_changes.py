"""Refusals are worded as nats-server 2.15 words them on SIGHUP for the same pair of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.changes import changed_fields, described
from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.options import Options
from jetcluster.config.tls_options import TlsOptions


def load(text: str) -> Options:
    Path("c.conf").write_text("port: 4333\n" + text)
    return load_file("c.conf", {})[0]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("server_name: a", "server_name: b", "ServerName: old=a, new=b"),
        ("", "host: 127.0.0.2", "Host: old=0.0.0.0, new=127.0.0.2"),
        ("", "port: 5", "Port: old=4333, new=5"),
        ("", "http_port: 5", "HTTPPort: old=0, new=5"),
        ("", "https_verify: true", "HTTPSVerify: old=false, new=true"),
        ("", "console: true", "Console: old=false, new=true"),
        ("", "max_pending: 10000000", "MaxPending: old=67108864, new=10000000"),
        ("", "max_closed_clients: 5", "MaxClosedClients: old=10000, new=5"),
        ("", "no_header_support: true", "NoHeaderSupport: old=false, new=true"),
        ("accounts { S {} }", "accounts { S {} }\nsystem_account: S", "SystemAccount: old=, new=S"),
        ("cluster { name: x, port: -1 }", "cluster { name: x, port: 5555 }", "cluster port: old=-1, new=5555"),
        ("max_payload: 1000", "max_payload: 9000000", "max_payload over 8388608: new=9000000"),
        ("max_payload: 9000000", "max_payload: 9000001", "max_payload over 8388608: new=9000001"),
        ("jetstream { store_dir: S }", "jetstream { store_dir: T }", "jetstream storage directory"),
        ("jetstream {}", "jetstream {}\nstore_dir: T", "jetstream storage directory"),
        ("", "listen: '127.0.0.2:4333'", "Host: old=0.0.0.0, new=127.0.0.2"),
        ("jetstream { store_dir: S }", "jetstream { store_dir: S, domain: x }", "JetStreamDomain: old=, new=x"),
        (
            "jetstream { sync_interval: '2m' }",
            "jetstream { sync_interval: '10s' }",
            "SyncInterval: old=2m0s, new=10s",
        ),
        (
            "jetstream { max_file_store: 2GB, max_memory_store: 1GB }",
            "jetstream { max_file_store: 1GB, max_memory_store: 1GB }",
            "decreasing jetstream max memory and store",
        ),
        ("jetstream { max_file_store: 2GB }", "jetstream {}", "jetstream max memory and max store"),
        ("jetstream {}", "jetstream { max_file_store: 2GB }", "jetstream dynamic max memory and store"),
        ("", "leafnodes { listen: '127.0.0.1:1' }", 'LeafNode: field "Host": old=0.0.0.0, new=127.0.0.1'),
        ("leafnodes { port: 1 }", "leafnodes { port: 2 }", 'LeafNode: field "Port": old=1, new=2'),
        (
            "leafnodes { port: 1, authorization { user: a, password: secret } }",
            "leafnodes { port: 1, authorization { user: a, password: geheim } }",
            'LeafNode: field "Users"',
        ),
    ],
)
def test_what_cannot_change_refuses_the_reload(old: str, new: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed_fields(load(old), load(new))
    assert str(caught.value) == f"config reload not supported for {what}"


@pytest.mark.parametrize("block", ["cluster", "websocket"])
def test_tls_may_change_but_neither_begin_nor_end(block: str) -> None:
    without, one, other = (load(block + " { port: 1 }") for _ in range(3))
    for options, certificate in ((one, "c.pem"), (other, "d.pem")):
        getattr(options, block).tls = TlsOptions(cert_file=certificate, key_file="k.pem")
    assert changed_fields(one, other) == [block]
    for old, new in ((without, one), (one, without)):
        with pytest.raises(ConfigError, match=f"^config reload not supported for {block} tls on or off$"):
            changed_fields(old, new)


def test_a_larger_payload_may_become_smaller() -> None:
    assert changed_fields(load("max_payload: 9000000"), load("max_payload: 8999999")) == ["max_payload"]


def test_secrets_are_not_shown() -> None:
    text = "leafnodes { port: 1, authorization { user: a, password: %s } }"
    with pytest.raises(ConfigError) as caught:
        changed_fields(load(text % "old-secret"), load(text % "new-secret"))
    assert "secret" not in str(caught.value)
    text = "cluster { name: x, port: -1, authorization { user: a, password: %s } }"
    before, after = load(text % "old-secret"), load(text % "new-secret")
    assert described(changed_fields(before, after), before, after) == ["cluster"]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", []),
        ("", "max_payload: 1000", ["max_payload = 1000"]),
        ("", "debug: true", ["debug = true"]),
        ("", "ping_interval: 30s\nping_max: 3", ["ping_interval = 30s", "ping_max = 3"]),
        ("", "authorization { user: a, password: b }", ["authorization username", "authorization password"]),
        ("authorization { token: a }", "authorization { token: b }", ["authorization token"]),
        (
            "authorization { users: [ {user: a, password: b} ] }",
            "authorization { timeout: 3, users: [ {user: a, password: c} ] }",
            ["authorization users", "authorization timeout = 3"],
        ),
        ("", "server_tags: [a]\nserver_metadata { k: v }", ["tags", "metadata"]),
        ("", "no_fast_producer_stall: true", ["fast producers will not be stalled"]),
        ("no_fast_producer_stall: true", "", ["fast producers will be stalled"]),
        ("", "trace_headers: true", ["trace = true", "trace_headers = true"]),
        ("", "mappings { a: b }", ["mappings"]),
        ("leafnodes { port: 1 }", "leafnodes { port: 1, remotes [ {url: 'nats://h'} ] }", ["LeafNode remotes"]),
        ("accounts { A {} }", "accounts { A { jetstream: enabled } }", ["accounts"]),
        (
            "cluster { name: x, port: 1 }",
            "cluster { name: x, port: 1, routes: ['nats://h:1'] }",
            ["cluster routes"],
        ),
        (
            "jetstream { max_file_store: 1GB }",
            "jetstream { max_file_store: 2GB }",
            ["JetStream max_file_store = 2.00 GB"],
        ),
        ("jetstream {}", "jetstream { limits { max_ack_pending: 5 } }", ["JetStream limits"]),
        ("jetstream {}", "jetstream { balance { replicas: false } }", ["JetStream balance"]),
        (
            "jetstream {}",
            "jetstream { balance { leaders: false }, limits { max_ack_pending: 5 } }",
            ["JetStream balance", "JetStream limits"],
        ),
    ],
)
def test_what_can_change_is_logged_by_name(old: str, new: str, lines: list[str]) -> None:
    before, after = load(old), load(new)
    assert described(changed_fields(before, after), before, after) == lines


JETSTREAM = "jetstream {{ store_dir: /s, {} }}\n"


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ("", "key: a", "jetstream encryption on or off"),
        ("key: a", "", "jetstream encryption on or off"),
        ("key: a", "key: b", "jetstream key: prev_encryption_key is not the key in force"),
        ("key: a", "key: b, prev_key: c", "jetstream key: prev_encryption_key is not the key in force"),
        ("key: a", "key: b, prev_key: a", ""),
        ("key: a", "key: b, prev_key: a, cipher: aes", ""),
        ("key: a, cipher: chacha", "key: a, cipher: chachapoly", None),
        ("ek: a, prev_ek: b", "encryption_key: a", ""),
    ],
)
def test_the_key_changes_to_one_that_knows_the_key_before(old: str, new: str, refused: str | None) -> None:
    before, after = (load(JETSTREAM.format(text)) for text in (old, new))
    if refused:
        with pytest.raises(ConfigError, match=f"^config reload not supported for {refused}$"):
            changed_fields(before, after)
        return
    changed = changed_fields(before, after)
    assert described(changed, before, after) == ([] if refused is None else ["JetStream encryption"])
