"""The system account and the monitoring port of a node."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jetcluster.clock import SystemClock
from jetcluster.config.account_options import AccountOptions, UserOptions
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.server.server import Server
from tests.unit.monitor import fake_node


@pytest.mark.parametrize(
    ("accounts", "modules"),
    [
        (None, []),
        (
            {"$SYS": AccountOptions("$SYS", users=[UserOptions("a", "b")])},
            ["jetcluster.monitor.varz", "jetcluster.monitor.system.answers"],
        ),
    ],
)
async def test_only_what_a_configured_system_account_needs_is_brought_in(
    server: Server, accounts: dict[str, AccountOptions] | None, modules: list[str]
) -> None:
    node = fake_node.node(server, SystemClock())
    node.reload, node.operator = SimpleNamespace(), None
    node.options.accounts = accounts
    assert NodeMonitoring(node).modules() == modules
