from __future__ import annotations

import pytest

from jetcluster.config.account_options import AccountOptions, AuthorizationOptions, UserOptions
from jetcluster.config.options import Options
from jetcluster.config.tls_options import TlsOptions
from jetcluster.node.warm_up import modules_of

ED25519 = "cryptography.hazmat.primitives.asymmetric.ed25519"


@pytest.mark.parametrize(
    ("options", "modules"),
    [
        (Options(), []),
        (Options(authorization=AuthorizationOptions(user="a", password="b")), []),
        (Options(authorization=AuthorizationOptions(user="a", password="$2a$10$x")), ["bcrypt"]),
        (Options(authorization=AuthorizationOptions(token="$2a$10$x")), ["bcrypt"]),
        (Options(authorization=AuthorizationOptions(users=[UserOptions(nkey="U")])), [ED25519]),
        (Options(accounts={"A": AccountOptions("A", users=[UserOptions("a", "$2b$10$x")])}), ["bcrypt"]),
        (Options(tls=TlsOptions(cert_file="c")), ["jetcluster.auth.certificates"]),
    ],
)
def test_only_what_the_configuration_needs_is_brought_in(options: Options, modules: list[str]) -> None:
    assert modules_of(options) == modules
