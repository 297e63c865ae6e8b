"""Options of operator mode that contradict others (config/operator_checks.py), in nats-server's words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import Options
from tests.signer import Operator, preload

OPERATOR, STRANGER = Operator(), Operator()
ACCOUNT, SYSTEM, FOREIGN = OPERATOR.account("A"), OPERATOR.account("SYS"), STRANGER.account("X")
EXPIRED = OPERATOR.account("old")
EXPIRED.fields = {"exp": 5}
LINE = f'operator: "{OPERATOR.jwt}"\n'
KNOWN = preload(ACCOUNT, SYSTEM)
USER, BEARER = ACCOUNT.user(), ACCOUNT.user(bearer_token=True)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Options]:
    def read(text: str) -> Options:
        path = tmp_path / "c.conf"
        path.write_text(text)
        return load_file(str(path), {})[0]

    return read


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
def test_what_cannot_be_together(load: Callable[[str], Options], text: str) -> None:
    assert problem_of(load(text)) == PROBLEMS[text]


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("99.0.0", "expected major version 99 > server major version 2"),
        ("2.99.0", "expected minor version 99 > server minor version"),
        ("99.0", "expects version 99.0 got error instead: asserted server version must be of the form"),
    ],
)
def test_the_operator_wants_a_newer_server(load: Callable[[str], Options], version: str, why: str) -> None:
    problem = problem_of(load(with_operator(assert_server_version=version) + "resolver: MEM"))
    assert problem is not None
    assert why in problem
