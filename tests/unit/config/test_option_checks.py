"""Options that no server can run with (config/option_checks.py), in nats-server 2.15.2's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.load import load_file
from jetcluster.config.option_checks import is_host_and_port, problem_of
from tests.signer import Operator, preload
from tests.unit.config.files import load


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_payload: 100MB\n", "max_payload (104857600) cannot be higher than max_pending (67108864)"),
        (
            'lame_duck_duration: "40s"\nlame_duck_grace_period: "60s"\n',
            "lame duck grace period (1m0s) should be strictly lower than lame duck duration (40s)",
        ),
        (
            "no_auth_user: x\nauthorization { users: [ {user: a, password: b} ] }\n",
            'no_auth_user: "x" not present as user or nkey in authorization block or account configuration',
        ),
        ("no_auth_user: x\n", 'no_auth_user: "x" present, but users/nkeys are not defined'),
        ("system_account: X\n", "error resolving system account: account missing"),
        ("jetstream: true\ncluster { port: -1 }\n", "jetstream cluster requires `server_name` to be set"),
        (
            "jetstream: true\nserver_name: a\ncluster { port: -1 }\n",
            "jetstream cluster requires `cluster.name` to be set",
        ),
        ('cluster { routes: ["nats://x:1"] }\n', "solicited routes require cluster capabilities, e.g. --cluster"),
        (
            'leafnodes { remotes: [ { url: "nats-leaf://u:p@h:1", deny_imports: "{{account-hash(a)}}" } ] }\n',
            'invalid deny_imports for remote urls=["nats-leaf://[REDACTED]@h:1"], account="$G": permission subject '
            '"{{account-hash(a)}}": invalid mapping destination: too many arguments passed to the function in '
            "{{account-hash(a)}}",
        ),
        (
            'leafnodes { remotes: [ { url: "nats-leaf://h:1", deny_exports: ["{{account-hash()}}", '
            '"{{account-hash-leaf-remote()}}"] } ] }\n',
            None,
        ),
        ("port: -1\n", None),
    ],
)
def test_problem_of_values_that_contradict(text: str, problem: str | None) -> None:
    assert problem_of(load(text)) == problem


def test_a_port_of_more_digits_than_python_reads_is_none() -> None:
    assert not is_host_and_port("h:" + "9" * 5000)
    assert is_host_and_port("h:04222")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "http_port: 99999",
            "Can't start monitoring: can't listen to the monitor port: listen tcp: address 99999: invalid port",
        ),
        ("cluster { name: c, port: 99999 }", "Error listening on router port: listen tcp: address 99999: invalid port"),
        ("leafnodes { port: -2 }", "Error listening on leafnode port: listen tcp: address -2: invalid port"),
        (
            "websocket { port: 65536, no_tls: true }",
            "Unable to listen for websocket connections: listen tcp: address 65536: invalid port",
        ),
        (
            "cluster { name: c, port: 1, routes: ['nats://u:geheim@h:99999'] }",
            'error parsing route url ["nats://[REDACTED]@h:99999"]: Port out of range 0-65535',
        ),
        (
            "cluster { name: c, port: 1, routes: ['nats://:1'] }",
            'error parsing route url ["nats://:1"]: a route needs a host and a port',
        ),
        ('jetstream { store_dir: "a\\x00b" }', "invalid store_dir: a path has no NUL character"),
        ("client_advertise: 'h:99999'", "invalid ClientAdvertise value of h:99999, it must be host or host:port"),
        (
            "cluster { name: c, port: 1, cluster_advertise: 'a b' }",
            "invalid cluster advertise value of a b, it must be host or host:port",
        ),
        ("jetstream { domain: 'a.b' }", "invalid domain name: may not contain ., * or >"),
        ("jetstream { domain: 'a b' }", 'invalid domain name: derived "$JS.a b.API.>" is not a valid subject'),
        ("cluster { name: c, port: 1, compression: nope }", 'unsupported compression mode "nope"'),
        ("leafnodes { port: 1, compression { mode: nope } }", 'unsupported compression mode "nope"'),
        (
            "websocket { port: -1, no_tls: true, allowed_origins: ['http://h:x'] }",
            'unable to parse allowed origin: parse "http://h:x": invalid port ":x" after host',
        ),
        (
            "cluster { name: c, port: -1, compression: S2_Fast }\nclient_advertise: h\n"
            "server_name: n\njetstream { domain: hub }",
            None,
        ),
    ],
)
def test_values_that_no_server_can_run_with(text: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "c.conf").write_text(text)
    assert problem_of(load_file(str(tmp_path / "c.conf"), {})[0]) == problem


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("h", True),
        ("h:1", True),
        ("1.2.3.4:65535", True),
        ("[::1]:4222", True),
        ("[::1]", True),
        ("::1", True),
        (":", False),
        (":1", False),
        ("h:", False),
        ("h:0", False),
        ("h:65536", False),
        ("h:x", False),
        ("[::1]4222", False),
        ("a b", False),
        ("u:p@h:1", False),
        ("nats://h:1", False),
    ],
)
def test_addresses_to_advertise(address: str, is_one: bool) -> None:
    assert is_host_and_port(address) is is_one


def test_a_remote_twice_is_refused_without_its_password(tmp_path: Path) -> None:
    from jetcluster.config.lexer import ConfigError

    (tmp_path / "c.conf").write_text("leafnodes { remotes: [ {url: 'nats://u:p@h:1'}, {url: 'nats://u:p@h:1'} ] }")
    with pytest.raises(ConfigError) as caught:
        load_file(str(tmp_path / "c.conf"), {})
    assert ':1:71: duplicate remote urls=["nats://[REDACTED]@h:1"], account="$G"' in str(caught.value)


OPERATOR, STRANGER = Operator(), Operator()
ACCOUNT, SYSTEM, FOREIGN = OPERATOR.account("A"), OPERATOR.account("SYS"), STRANGER.account("X")
EXPIRED = OPERATOR.account("old")
EXPIRED.fields = {"exp": 5}
LINE = f'operator: "{OPERATOR.jwt}"\n'
KNOWN = preload(ACCOUNT, SYSTEM)
USER, BEARER = ACCOUNT.user(), ACCOUNT.user(bearer_token=True)


def with_operator(**claims: object) -> str:
    return f'operator: "{Operator(**claims).jwt}"\n'


PROBLEMS = {
    LINE: "operators require an account resolver to be configured",
    LINE + KNOWN + "accounts { A { users: [] } }": "operators do not allow Accounts to be configured directly",
    LINE + KNOWN + "authorization { users: [ {user: a, password: b} ] }": (
        "operators do not allow users to be configured directly"
    ),
    LINE + KNOWN + f"trusted_keys: {OPERATOR.key.public}": (
        "conflicting options for 'TrustedKeys' and 'TrustedOperators'"
    ),
    LINE + preload(ACCOUNT) + f"system_account: {SYSTEM.public}": "error resolving system account: account missing",
    LINE + preload(FOREIGN) + f"system_account: {FOREIGN.public}": (
        "error resolving system account: account validation failed"
    ),
    LINE + preload(EXPIRED) + f"system_account: {EXPIRED.public}": (
        "error resolving system account: account validation failed"
    ),
    LINE + f'resolver: MEMORY\nresolver_preload {{ {SYSTEM.public}: "{ACCOUNT.jwt}" }}\nsystem: {SYSTEM.public}': (
        "error resolving system account: account validation failed"
    ),
    LINE + KNOWN + "system_account: SYS": "error resolving system account: will only fetch valid account keys",
    LINE + "resolver { type: full, dir: d }": (
        "using nats based account resolver - the system account needs to be specified in configuration or the operator "
        "jwt"
    ),
    LINE + f"resolver: 'URL(http://127.0.0.1:1/)'\nresolver_preload {{ {ACCOUNT.public}: \"{ACCOUNT.jwt}\" }}": (
        "resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR"
    ),
    "default_sentinel: x": "default sentinel requires operators and accounts",
    LINE + KNOWN + "default_sentinel: x": "default sentinel JWT not valid",
    LINE + KNOWN + f'default_sentinel: "{USER.jwt}"': "default sentinel must be a bearer token",
    LINE + KNOWN + f'default_sentinel: "{BEARER.jwt}"': None,
    LINE + KNOWN + "no_auth_user: foo": "no_auth_user not compatible with Trusted Operator",
    LINE + KNOWN + "websocket { port: -1, no_tls: true, no_auth_user: foo }": (
        "no_auth_user not compatible with Trusted Operator"
    ),
    LINE + KNOWN + "websocket { port: -1, no_tls: true, jwt_cookie: c }": None,
    LINE + KNOWN + "resolver_pinned_accounts: [foo]": 'pinned account key "foo" is not a valid public account nkey',
    LINE + KNOWN + 'leafnodes { remotes [ { url: "nats://127.0.0.1:1" } ] }': (
        "operator mode requires account nkeys in remotes. Please add an `account` key to each remote in your "
        "`leafnodes` section, to assign it to an account. Each account value should be a 56 character public key, "
        "starting with the letter 'A'"
    ),
    LINE + KNOWN + f'leafnodes {{ remotes [ {{ url: "nats://127.0.0.1:1", account: {ACCOUNT.public} }} ] }}': None,
    with_operator(assert_server_version="0.99.99") + KNOWN: None,
    with_operator(system_account=ACCOUNT.public) + f"resolver: MEM\nsystem_account: {SYSTEM.public}": (
        "system_account in config and operator JWT must be identical"
    ),
    f"trusted_keys: [{OPERATOR.key.public}]\n{KNOWN}accounts {{ A {{ users: [ {{user: a, password: b}} ] }} }}": None,
}


@pytest.mark.parametrize("text", PROBLEMS, ids=range(len(PROBLEMS)))
def test_what_cannot_be_together(text: str) -> None:
    assert problem_of(load(text)) == PROBLEMS[text]


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("99.0.0", "expected major version 99 > server major version 2"),
        ("2.99.0", "expected minor version 99 > server minor version"),
        ("99.0", "expects version 99.0 got error instead: asserted server version must be of the form"),
    ],
)
def test_the_operator_wants_a_newer_server(version: str, why: str) -> None:
    problem = problem_of(load(with_operator(assert_server_version=version) + "resolver: MEM"))
    assert problem is not None
    assert why in problem
