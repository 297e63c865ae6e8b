"""Operator mode in the configuration: what is read, and what is refused in nats-server's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.changes import changed_fields, described
from jetcluster.config.lexer import ConfigError
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import CACHE, FULL, MEMORY, URL
from testkit.certificates import Authority
from tests.signer import Operator, preload
from tests.unit.config.files import load

OPERATOR, STRANGER = Operator(), Operator()
ACCOUNT, SYSTEM = OPERATOR.account("A"), OPERATOR.account("SYS")
EXPIRED = OPERATOR.account("old")
EXPIRED.fields = {"exp": 5}
LINE = f'operator: "{OPERATOR.jwt}"\n'
KNOWN = preload(ACCOUNT, SYSTEM)
USER = ACCOUNT.user()


def test_an_operator_and_what_it_has_signed() -> None:
    options = load(LINE + KNOWN + f"system_account: {SYSTEM.public}\n")
    assert problem_of(options) is None
    assert options.operator.is_on
    assert options.operator.keys == [OPERATOR.key.public]
    assert options.operator.preload == {ACCOUNT.public: ACCOUNT.jwt, SYSTEM.public: SYSTEM.jwt}
    assert options.system_account_name == SYSTEM.public
    assert options.accounts == {}
    assert USER.jwt not in repr(options)


def test_an_operator_in_a_file_names_its_system_account(tmp_path: Path) -> None:
    operator = Operator(system_account=SYSTEM.public)
    operator.key = OPERATOR.key
    decorated = f"-----BEGIN NATS OPERATOR JWT-----\n{operator.jwt}\n------END NATS OPERATOR JWT------\n"
    for name, text in (("plain.jwt", operator.jwt + "\n"), ("decorated.jwt", decorated)):
        (tmp_path / name).write_text(text)
        options = load(f'operator: "{tmp_path / name}"\n{KNOWN}')
        assert problem_of(options) is None
        assert options.system_account == SYSTEM.public
        assert load(f'operators: ["{tmp_path / name}"]\n{KNOWN}').operator.operators[0].token.name == "O"


@pytest.mark.parametrize("text", ["MEMORY", "memory", "mem", "MEM", '"Memory"'])
def test_memory_resolver(text: str) -> None:
    resolver = load(f"{LINE}resolver: {text}\n").operator.resolver
    assert resolver is not None
    assert resolver.kind == MEMORY


@pytest.mark.parametrize(
    ("text", "kind", "limit", "interval", "ttl"),
    [
        ("type: full, interval: '2m', limit: 7, allow_delete: true", FULL, 7, 120.0, 0.0),
        ("type: FULL", FULL, 0, 60.0, 0.0),
        ("type: cache, ttl: '1h', timeout: '3s'", CACHE, 1000, 60.0, 3600.0),
    ],
)
def test_directories(tmp_path: Path, text: str, kind: str, limit: int, interval: float, ttl: float) -> None:
    found = load(f"{LINE}resolver {{ dir: '{tmp_path}/jwt', {text} }}\n").operator.resolver
    assert found is not None
    assert (found.kind, found.limit, found.interval, found.ttl) == (kind, limit, interval, ttl)
    assert found.directory == f"{tmp_path}/jwt"


def test_url_resolver() -> None:
    for text in ('URL("http://127.0.0.1:9090/jwt/v1/accounts/")', "url(http://127.0.0.1:9090/jwt/v1/accounts)"):
        found = load(f"{LINE}resolver: '{text}'\n").operator.resolver
        assert found is not None
        assert (found.kind, found.url) == (URL, "http://127.0.0.1:9090/jwt/v1/accounts/")


def test_tls_of_the_web_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = load(f"{LINE}{KNOWN}resolver_tls {{ ca_file: '{authority.file}' }}\n")
    assert options.operator.resolver_tls is not None
    assert options.operator.resolver_tls.ca_file == str(authority.file)
    with pytest.raises(ConfigError):
        load(f"{LINE}{KNOWN}resolver_tls {{ ca_file: '{tmp_path}/nowhere' }}\n")


REFUSED = {
    'operator: "eyJabc"': "2:1: error parsing operator JWT: expected 3 chunks",
    "operator: /nowhere/op.jwt": "2:1: error parsing operator JWT: open /nowhere/op.jwt: no such file or directory",
    f'operator: "{ACCOUNT.jwt}"': "2:1: error parsing operator JWT: not operator claim",
    "operator: 5": '2:1: "operator" must be a string or a list, not an integer',
    "trusted_keys: [XYZ]": '2:16: trust key "XYZ" required to be a valid public operator nkey',
    "trusted_keys: 5": '2:1: "trusted_keys" must be a string or a list, not an integer',
    "resolver: FOO": '2:1: error parsing account resolver, should be MEM or  URL("url") or a map containing dir and '
    "type state=[FULL|CACHE])",
    "resolver: 5": '2:1: "resolver" must be a string or a map, not an integer',
    "resolver: 'URL(\"::bad\")'": '2:1: error parsing account resolver url ["::bad"]',
    "resolver { type: full }": "2:1: dir has no value and needs to point to a directory",
    "resolver { type: full, dir: d, ttl: '1h' }": "2:1: FULL does not accept ttl",
    "resolver { type: full, dir: d, hard_delete: true }": "2:1: hard_delete has no effect without delete",
    "resolver { type: full, dir: d, interval: 'x' }": '2:1: time: invalid duration "x"',
    "resolver { type: full, dir: d, timeout: '0s' }": "2:1: Fetch timeout 0s is too smal",
    "resolver { type: cache, dir: d, allow_delete: true }": "2:1: CACHE does not accept allow_delete",
    "resolver { type: cache, dir: d, interval: '1m' }": "2:1: CACHE does not accept sync",
    "resolver_preload: []": '2:1: "resolver_preload" must be a map, not a list',
    f"resolver_preload {{ {ACCOUNT.public}: 5 }}": (
        '2:20: each element of "resolver_preload" must be a string, not an integer'
    ),
    f'resolver_preload {{ {ACCOUNT.public}: "xyz" }}': "2:20: invalid account JWT",
    "resolver_pinned_accounts: 5": '2:1: "resolver_pinned_accounts" must be a string or a list, not an integer',
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(f"port: 4222\n{text}\n")
    assert str(error.value).splitlines()[0].endswith(f"c.conf:{REFUSED[text]}")


def test_operators_do_not_change_while_the_server_runs(tmp_path: Path) -> None:
    old = load(LINE + KNOWN)
    for text, name in (
        (f'operator: "{STRANGER.jwt}"\n{KNOWN}', "TrustedOperators"),
        (f"trusted_keys: {OPERATOR.key.public}\n{KNOWN}", "TrustedOperators"),
        (f"{LINE}resolver {{ type: full, dir: '{tmp_path}' }}\nresolver_preload {{}}\n", "AccountResolver"),
    ):
        with pytest.raises(ConfigError, match=f"config reload not supported for {name}"):
            changed_fields(old, load(text))
    new = load(LINE + preload(ACCOUNT))
    assert described(changed_fields(old, new), old, new) == ["resolver_preload"], "told, without the JWTs"
