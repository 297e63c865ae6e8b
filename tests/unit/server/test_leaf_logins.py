"""Who a leaf node is that connects."""

from __future__ import annotations

from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.options import LeafOptions, LeafUserOptions
from jetcluster.server.leaf_logins import LeafLogins
from jetcluster.server.leaf_state import LeafState
from testkit.server_rig import Bench, Nobody


def logins(authenticator: Authenticator | None = None, *users: LeafUserOptions) -> LeafLogins:
    bench = Bench(authenticator, leafnodes=LeafOptions(users=list(users)))
    return LeafLogins(bench.server.parts, LeafState(bench.server.state))


def test_the_users_of_the_block_are_the_only_ones() -> None:
    own = logins(None, LeafUserOptions(user="u", password="p", account="A"))
    found = own.log_in({"user": "u", "pass": "p"}, b"", "10.0.0.1")
    assert found is not None and (found.account, found.user) == ("A", "u")
    assert own.log_in({"user": "u", "pass": "q"}, b"", "10.0.0.1") is None
    assert own.log_in({}, b"", "10.0.0.1") is None


def test_without_users_clients_rules_count() -> None:
    found = logins().log_in({}, b"", "10.0.0.1")
    assert found is not None and found.account == "$G"
    assert logins(Nobody()).log_in({}, b"", "10.0.0.1") is None


def test_only_a_password_that_is_hashed_takes_long() -> None:
    own = logins(None, LeafUserOptions(user="u", password="p"))
    assert own.slow_part({"user": "u", "pass": "p"}) is None and own.slow_part({"user": "v"}) is None
    slow = logins(None, LeafUserOptions(user="u", password="$2a$04$" + "x" * 53))
    assert slow.slow_part({"user": "u", "pass": "p"}) is not None
