from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.nkeys import encode_user_key
from jetcluster.config.option_checks import problem_of
from tests.unit.config.files import load

NKEY = encode_user_key(bytes(range(32)))


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return str(caught.value)


# Every text below was produced by `nats-server -t` 2.15 for the same input.
ERRORS = [
    ("foo: 1\n", 'c.conf:1:0: unknown field "foo"\n'),
    ("foo: 1\nbar: 2\n", 'c.conf:1:0: unknown field "foo"\nc.conf:2:1: unknown field "bar"\n'),
    ("cluster { name: a, foo: 1 }\n", 'c.conf:1:19: unknown field "foo"\n'),
    ('jetstream { store_dir: "/tmp/x", zip: 2 }\n', 'c.conf:1:33: unknown field "zip"\n'),
    ("jetstream { limits { foo: 1} }\n", 'c.conf:1:21: unknown field "foo"\n'),
    ("authorization {foo : 1}", 'c.conf:1:15: unknown field "foo"\n'),
    ("websocket { foo: 1 }\n", 'c.conf:1:12: unknown field "foo"\n'),
    ("leafnodes { foo: 1 }\n", 'c.conf:1:12: unknown field "foo"\n'),
    ("gateway { foo: 1 }\n", 'c.conf:1:10: unknown field "foo"\n'),
    ("mqtt { foo: 1 }\n", 'c.conf:1:7: unknown field "foo"\n'),
    ("tls { foo: 1 }\n", 'c.conf:1:6: error parsing tls config, unknown field "foo"\n'),
    ('tls { cert_file: "./x.pem" }\n', "c.conf:1:0: missing 'key_file' in TLS configuration\n"),
    ("accounts { A { users: [ {user: a, password: b} ], foo: 1 } }\n", 'c.conf:1:50: unknown field "foo"\n'),
    (
        "accounts { A { jetstream { max_mem: 10, max_bytes_required: true, foo: 2} } }\n",
        'c.conf:1:66: unknown field "foo"\n',
    ),
    (
        "accounts { A { limits { max_connections: 10, foo: 2} } }\n",
        'c.conf:1:45: Unknown field "foo" parsing account limits\n',
    ),
    ('port: "abc"\n', 'c.conf:1:0: "port" must be an integer, not a string\n'),
    ("debug: 1\n", 'c.conf:1:0: "debug" must be a boolean, not an integer\n'),
    ("ping_max: 1.5\n", 'c.conf:1:0: "ping_max" must be an integer, not a float\n'),
    ('ping_interval: "2x"\n', 'c.conf:1:0: error parsing ping_interval: time: unknown unit "x" in duration "2x"\n'),
    ('listen: "a:b"\n', 'c.conf:1:0: could not parse port "b"\n'),
    ("listen: 127.0.0.1\n", 'c.conf:1:0: could not parse address string "127.0.0.1"\n'),
    ('server_name: "a b"\n', "c.conf:1:0: server name cannot contain spaces\n"),
    ('cluster { name: "a b" }\n', "c.conf:1:10: cluster name cannot contain spaces\n"),
    ("jetstream: foo\n", "c.conf:1:0: Expected 'enabled' or 'disabled' for string value, got 'foo'\n"),
    ("jetstream { max_mem: 10X }\n", "c.conf:1:12: max_mem_store sizes defined as strings must end in K, M, G, T\n"),
    ("cluster: ''\n", 'c.conf:1:0: "cluster" must be a map, not a string\n'),
    (
        "authorization { user: a, password: b, users: [] }\n",
        "c.conf:1:0: Can not have a single user/pass and a users array\n",
    ),
    (
        "authorization { token: a, users: [{user: a, password: b}] }\n",
        "c.conf:1:0: Can not have a token and a users array\n",
    ),
    ("authorization { user: a, password: b, token: c }\n", "c.conf:1:0: Cannot have a user/pass and token\n"),
    ("authorization { users: [ {password: a} ] }\n", "c.conf:1:26: User entry requires a user\n"),
    ("authorization { users: [ {nkey: UXX} ] }\n", "c.conf:1:26: Not a valid public nkey for a user\n"),
    (
        "authorization { users: [ {user: a, password: b, allowed_connection_types: [FOO]} ] }\n",
        'c.conf:1:48: invalid connection types ["FOO"]\n',
    ),
    ("cluster { authorization { users: [] } }\n", "c.conf:1:10: Cluster authorization does not allow multiple users\n"),
    (
        "cluster { authorization { user: a, password: b, token: x} }\n",
        "c.conf:1:10: Cluster authorization does not support tokens\n",
    ),
    ("lame_duck_duration: 31", 'c.conf:1:0: "lame_duck_duration" must be a string, not an integer\n'),
    (
        'tls { cert_file: "./x.pem", key_file: "./y.pem" }',
        "c.conf:1:0: error parsing X509 certificate/key pair: open ./x.pem: no such file or directory\n",
    ),
    (
        "authorization { user: a, password: b }\naccounts { A {users: [{user: c, password: d}]}}",
        "c.conf:2:15: Can not have a single user/pass and accounts\n",
    ),
    (
        "accounts { A { users: [ {user: a, password: b} ] }, B { users: [ {user: a, password: b} ] } }",
        'c.conf:1:56: Duplicate user "a" detected\n',
    ),
    (
        "cluster { listen: 127.0.0.1:1, routes: nats://x:1 }",
        'c.conf:1:31: "routes" must be a list, not a string\n',
    ),
    ('lame_duck_duration: "10s"\n', "c.conf:1:0: invalid lame_duck_duration of 10s, minimum is 30 seconds\n"),
    ('lame_duck_grace_period: "-1s"\n', "c.conf:1:0: invalid lame_duck_grace_period, needs to be positive\n"),
]


@pytest.mark.parametrize(("text", "expected"), ERRORS)
def test_errors_are_worded_as_by_the_real_server(text: str, expected: str) -> None:
    assert error_of(text) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("operator: /x/op.jwt\n", "error parsing operator JWT: open /x/op.jwt: no such file or directory"),
        ("authorization { auth_callout { issuer: A } }\n", "auth_callout is not supported"),
        ("jetstream { key: abc, cipher: des }\n", 'Unknown cipher type: "des"'),
        ("jetstream { tpm { keys_file: x } }\n", "tpm is not supported"),
        ("gateway { name: g, port: 7222 }\n", "gateways are not supported"),
        ("gateway { name: g, gateways: [] }\n", "gateways are not supported"),
        ("cluster { permissions { import: a } }\n", "cluster permissions are not supported"),
        (
            "cluster { authorization { user: a, password: b, permissions { publish: a } } }\n",
            "cluster permissions are not supported",
        ),
        ("proxy_protocol: true\n", "proxy_protocol is not supported"),
        ("proxies { trusted: [ {key: x} ] }\n", "proxies are not supported"),
        ("ocsp: true\n", "ocsp is not supported"),
        ("ocsp { mode: auto }\n", "ocsp is not supported"),
        ("default_js_domain { A: hub }\n", "default_js_domain is not supported"),
        ("leafnodes { isolate: true }\n", "isolation of leafnodes is not supported"),
        ("leafnodes { remotes [ {url: x, request_isolation: true} ] }\n", "isolation of leafnodes is not supported"),
        ("leafnodes { remotes [ {url: x, js_cluster_migrate: {}} ] }\n", "jetstream_cluster_migrate is not supported"),
        ("tls { ocsp_peer: true }\n", "c.conf:1:6: ocsp_peer is not supported"),
        (
            "tls { cert_match: x }\n",
            "c.conf:1:6: cert_match is not supported: it is of the certificate store of Windows",
        ),
        ("tls { cert_store: x }\n", "c.conf:1:6: cert_store is not supported"),
        ("tls { verify_cert_and_check_known_urls: true }\n", "not supported in this context"),
        ("cluster { listen: 1, tls { verify: true } }\n", "tls of a port needs cert_file and key_file"),
        ("accounts { A { users: [{user: a}] }, B { users: [{user: a}] } }\n", 'Duplicate user "a" detected'),
        ("accounts { A { users: [{user: a}] } }\nauthorization { token: t }\n", "Can not have a token and accounts"),
        (
            "authorization { users: [{user: a, permissions: {publish: 'a..b', zip: 1}}] }\n",
            'subject "a..b" is not a valid',
        ),
    ],
)
def test_what_must_not_be_ignored_is_refused(text: str, part: str) -> None:
    assert part in error_of(text)


def test_a_full_configuration() -> None:
    options = load("""
        server_name: n1
        listen: 127.0.0.1:-1
        http: localhost:8222
        client_advertise: "example.org:4222"
        server_tags: ["az:1", "ssd"]
        max_payload: 2MB, max_control_line: 8KB, max_connections: 100, max_pending: 32MB
        ping_interval: "30s", ping_max: 5, write_deadline: "2s"
        lame_duck_duration: "40s", lame_duck_grace_period: "5s"
        debug: true, trace: false, logtime: false, log_file: "/tmp/x.log", pid_file: /tmp/x.pid
        ports_file_dir: /tmp, no_header_support: true
        jetstream {
          store_dir: "/data", max_memory_store: 256MB, max_file_store: "10G", domain: hub, sync_interval: always
          limits { max_ack_pending: 5, max_ha_assets: 7, duplicate_window: "1m", batch { max_msgs: 10, timeout: "5s" } }
        }
        cluster {
          name: c1, listen: "0.0.0.0:6222", no_advertise: true, cluster_advertise: "h:1", connect_retries: 3
          authorization { user: r, password: s, timeout: 0.5 }
          routes [ nats-route://r:s@127.0.0.1:6223
                   "nats://[::1]:6224" ]
        }
    """)
    assert (options.server_name, options.host, options.port) == ("n1", "127.0.0.1", -1)
    assert (options.http_host, options.http_port) == ("localhost", 8222)
    assert options.server_tags == ["az:1", "ssd"]
    assert (options.max_payload, options.max_control_line, options.max_pending) == (2 << 20, 8192, 32 << 20)
    assert (options.ping_interval, options.ping_max, options.write_deadline) == (30.0, 5, 2.0)
    assert (options.lame_duck_duration, options.lame_duck_grace_period) == (40.0, 5.0)
    assert (options.debug, options.trace, options.logtime) == (True, False, False)
    assert options.no_header_support
    jetstream = options.jetstream
    assert (jetstream.enabled, jetstream.store_dir, jetstream.domain) == (True, "/data", "hub")
    assert (jetstream.max_memory_store, jetstream.max_file_store) == (256 << 20, 10 << 30)
    assert jetstream.sync_interval is None
    assert (jetstream.max_ack_pending, jetstream.max_batch_size, jetstream.max_batch_timeout) == (5, 10, 5.0)
    cluster = options.cluster
    assert (cluster.name, cluster.host, cluster.port) == ("c1", "0.0.0.0", 6222)
    assert '"cluster.connect_retries"' in options.inert
    assert cluster.routes == ["nats-route://r:s@127.0.0.1:6223", "nats://[::1]:6224"]
    assert (cluster.authorization.user, cluster.authorization.password, cluster.authorization.timeout) == (
        "r",
        "s",
        0.5,
    )
    assert (options.cluster_name, options.no_advertise, options.domain) == ("c1", True, "hub")
    assert options.warnings == []
    assert options.config_digest.startswith("sha256:")


def test_accounts_users_and_permissions() -> None:
    options = load(f"""
        no_auth_user: guest
        system_account: SYS
        accounts {{
          SYS {{ users: [ {{user: admin, password: x}} ] }}
          A {{
            jetstream {{ max_mem: 1M, max_file: "2G", max_streams: 5 }}
            limits {{ max_connections: 3 }}
            default_permissions {{ publish: "d.>" }}
            users: [
              {{user: guest}}
              {{nkey: {NKEY}, permissions {{
                pub {{ allow: [a, "b.*"], deny: c }}, sub: ["x q", "y"], allow_responses {{max: 4, expires: "1m"}}
              }} }}
            ]
          }}
          B {{ jetstream: enabled }}
          C {{ jetstream: disabled }}
        }}
    """)
    assert options.accounts is not None
    a = options.accounts["A"]
    assert a.jetstream is not None
    assert (a.jetstream.max_memory, a.jetstream.max_store, a.jetstream.max_streams) == (1_000_000, 2 << 30, 5)
    assert a.limits.max_connections == 3
    guest, key_user = a.users
    assert guest.permissions is not None
    assert guest.permissions.publish.allow == ["d.>"]
    assert (key_user.nkey, key_user.account) == (NKEY, "A")
    permissions = key_user.permissions
    assert permissions is not None
    assert (permissions.publish.allow, permissions.publish.deny) == (["a", "b.*"], ["c"])
    assert permissions.subscribe.allow == ["x q", "y"]
    assert permissions.responses is not None
    assert (permissions.responses.max_messages, permissions.responses.expires) == (4, 60.0)
    assert options.accounts["B"].jetstream is not None
    assert options.accounts["C"].jetstream is None
    assert problem_of(options) is None


def test_switches_that_ask_for_what_is_the_case_are_accepted() -> None:
    options = load("""
        proxy_protocol: false, ocsp: false, no_system_account: false, gateway {}, mqtt {}, proxies {}
        leafnodes { isolate: false, remotes [ {url: x, request_isolation: false, js_cluster_migrate: false} ] }
    """)
    assert options.inert == []


@pytest.mark.parametrize("name", ["no_system_account", "no_system", "no_sys_acc"])
def test_a_server_without_a_system_account_is_accepted_and_has_one(name: str) -> None:
    options = load(f"{name}: true\n")
    assert options.inert == [f'"{name}"'] and options.system_account_name == "$SYS"


def test_mqtt_is_refused_by_name() -> None:
    assert error_of("mqtt { port: 1883 }\n") == "c.conf:1:0: mqtt is not supported\n"


def test_what_nats_js_configures_is_accepted_and_reported_as_inert() -> None:
    options = load("""
        listen: "127.0.0.1:-1"
        http: 8222
        server_tags: [a]
        websocket { port: -1, no_tls: true }
        leafnodes { port: -1, remotes: [ {url: "nats://x:1"} ] }
        mappings { foo: bar }
    """)
    assert options.inert == []
    assert (options.websocket.port, options.websocket.no_tls) == (-1, True)
    assert (options.leafnodes.port, options.leafnodes.remotes[0].urls) == (-1, ["nats://x:1"])
    assert (options.http_host, options.http_port) == ("", 8222)


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("listen: 4333\n", "5db143167d332f8f2ce2d927529ec772c220a53c3799d2fa938aa93e9d62e00d"),
        ("server_tags: a\n", "1b12601fd728f34e6b6f340b0d421669221f1d6c151eccfd76e383dfe5c1318d"),
        (
            "authorization { users: [ {user: a, password: b, permissions: {publish: {allow: [a, b], deny: c}, "
            'sub: ["a", "b q"], allow_responses: {max: 4, expires: "2m"}}} ] }\n',
            "29ebc5e4b6d1b78a93762c28d79af2c67f75c877a7086cae125a588074f0976b",
        ),
        (
            'Y: "<&>"\nX: 1.5\nserver_metadata { a: $Y }\nauthorization { timeout: $X }\n',
            "240cf587c25cf58de3671369a986a673424c20ce027ace86f081157512651608",
        ),
    ],
)
def test_the_digest_is_the_real_servers(text: str, digest: str) -> None:
    assert load(f"# comment\n{text}").config_digest == f"sha256:{digest}"


def test_a_top_level_key_that_serves_as_a_variable_is_known() -> None:
    assert load("X: 3333\nport: $X\n").port == 3333


def test_numbers_for_durations_start_with_a_warning() -> None:
    Path("c.conf").write_text("ping_interval: 20\n")
    options, warnings = load_file("c.conf", {})
    assert options.ping_interval == 20.0
    assert warnings == [
        'c.conf:1:0: invalid use of field "ping_interval": ping_interval should be converted to a duration'
    ]


@pytest.mark.parametrize(
    "text",
    [
        'cluster { port: 1, routes: ["nats://u:geheim@h:x"] }',
        'cluster { port: 1, routes: ["nats://geheim@h"] }',
        'cluster { port: 1, routes: ["nats://u:geheim@h:1", "nats://u:geheim@h:1"] }',
        'leafnodes { remotes [ {url: "ws://u:geheim@h:1"} ] }',
        'leafnodes { remotes [ {url: "nats://u:geheim@h:x"} ] }',
        'leafnodes { remotes [ {url: "nats://h:1", nkey: geheim} ] }',
    ],
)
def test_secrets_of_urls_are_in_no_message(text: str) -> None:
    Path("c.conf").write_text(text)
    try:
        _, warnings = load_file("c.conf", {})
        shown = "\n".join(warnings)
    except ConfigError as error:
        shown = str(error)
    assert shown
    assert "geheim" not in shown


def test_a_relaxed_sync_interval_is_a_warning_at_start() -> None:
    options = load('jetstream { store_dir: x, sync_interval: "2m" }\n')
    options.add_start_warnings()
    assert options.jetstream.sync_interval == 120.0
    assert "acknowledged messages of that time can be lost" in options.warnings[0]


def test_a_console_without_a_port_is_a_warning_at_start() -> None:
    for text, warnings in (
        ("console: true", ["console has no effect without http_port or https_port"]),
        ("console: true\nhttp: 8222", []),
        ("console: true\nhttps: 8222", []),
        ("console: false", []),
    ):
        options = load(text + "\n")
        options.add_start_warnings()
        assert options.warnings == warnings


@pytest.mark.parametrize(
    ("text", "inert"),
    [
        ("cluster { name: c, port: 1, connect_retries: 3, connect_backoff: false }", ['"cluster.connect_retries"']),
        ("cluster { name: c, port: 1, ping_max: 3, pool_size: 2 }", ['"cluster.ping_max"', '"cluster.pool_size"']),
        ("cluster { name: c, port: 1, compression: off, write_timeout: default }", []),
        ("prof_port: 6060\nfeature_flags { x: true }", ['"prof_port"']),
        ("jetstream { meta_compact: 3, unique_tag: az }", ['"jetstream.meta_compact"']),
        ("jetstream { limits { max_ha_assets: 3, duplicate_window: '5m' } }", []),
        (
            "accounts { A { jetstream { max_streams: 1, max_ack_pending: 2 }, limits { max_conn: 1, max_leafs: 2 } } }",
            [],
        ),
        ("max_payload: 1000\nlogtime_utc: true\nno_header_support: true", []),
    ],
)
def test_what_has_no_effect_is_known_before_the_start(text: str, inert: list[str]) -> None:
    assert load(text + "\n").inert == inert


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_is_a_warning(text: str) -> None:
    Path("c.conf").write_text(text)
    options, pedantic = load_file("c.conf", {})
    assert pedantic == ["c.conf: config has no values or is empty"]
    assert options.port == 4222


def test_limits_of_the_object_service() -> None:
    options = load('jetstream { limits { objects { max_uploads: 5, idle_timeout: "30s" } } }')
    assert (options.jetstream.max_object_uploads, options.jetstream.object_idle_timeout) == (5, 30.0)
