"""What all parts of a server go by."""

from __future__ import annotations

from jetcluster.config.account_options import AccountLimitOptions, AccountOptions
from testkit.server_rig import Bench


def test_an_account_that_is_not_configured_has_no_limits() -> None:
    accounts = {"A": AccountOptions("A", limits=AccountLimitOptions(max_connections=3))}
    state = Bench(accounts=accounts).server.state
    assert state.limits_of("A").max_connections == 3
    assert state.limits_of("B") == AccountLimitOptions()
    assert Bench().server.state.limits_of("A") == AccountLimitOptions()


def test_a_reload_replaces_what_the_parts_go_by() -> None:
    bench, traced = Bench(), Bench(trace=True).server.options
    assert bench.server.state.tracer is None
    bench.server.reconfigure(traced, bench.server.authenticator)
    assert bench.server.parts.state.options is traced and bench.server.state.tracer is not None
