"""Pedantic requests under server limits: what is refused, and with which text; the same on nats-server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testkit.client import Client
from testkit.harness import ProcessCluster

pytestmark = pytest.mark.cluster

SECOND = 1_000_000_000
WINDOW = "pedantic mode: duplicate window limits are higher than current limits"
CONFIG = """jetstream { limits { duplicate_window: "1m" } }
accounts { A { jetstream { store_max_stream_bytes: 5000000 }, users: [{user: a, password: a}] } }
no_auth_user: a
"""

CASES: list[tuple[dict[str, Any], str, str]] = [
    # fields; pedantic answer; plain answer ("" is a success)
    ({"duplicate_window": 60 * SECOND, "max_bytes": 5_000_000}, "", ""),
    ({"max_bytes": 5_000_000}, WINDOW, ""),
    ({"max_bytes": 5_000_000, "max_age": 30 * SECOND}, WINDOW, ""),
    (
        {"duplicate_window": 120 * SECOND},
        "duplicates window can not be larger then server limit of 1m0s",
        "duplicates window can not be larger then server limit of 1m0s",
    ),
    (
        {"duplicate_window": SECOND, "max_bytes": 6_000_000},
        "stream max bytes exceeds account limit max stream bytes",
        "stream max bytes exceeds account limit max stream bytes",
    ),
    ({"max_bytes": 6_000_000}, WINDOW, "stream max bytes exceeds account limit max stream bytes"),
    ({"max_age": 50_000_000}, "max age needs to be >= 100ms", "max age needs to be >= 100ms"),
    ({"max_msgs": -2}, "pedantic mode: max_msgs must be set to -1", ""),
    ({"num_replicas": -1}, "replicas count cannot be negative", "replicas count cannot be negative"),
    (
        {"sealed": True},
        "stream configuration for create can not be sealed",
        "stream configuration for create can not be sealed",
    ),
    (
        {"duplicate_window": SECOND, "subject_delete_marker_ttl": SECOND, "allow_msg_ttl": True,
         "allow_rollup_hdrs": True, "deny_purge": True},
        "roll-ups require the purge permission",
        "roll-ups require the purge permission",
    ),
    (
        {"duplicate_window": SECOND, "allow_msg_schedules": True, "allow_rollup_hdrs": True, "deny_purge": True},
        "roll-ups require the purge permission",
        "roll-ups require the purge permission",
    ),
]  # fmt: skip


async def create(client: Client, fields: dict[str, Any], pedantic: bool) -> str:
    config = {"name": "P", "subjects": ["p"], **fields, "pedantic": pedantic}
    reply = (await client.request("$JS.API.STREAM.CREATE.P", json.dumps(config).encode())).json()
    await client.request("$JS.API.STREAM.DELETE.P")
    return str(reply.get("error", {}).get("description", ""))


async def test_pedantic_under_server_limits(server: str) -> None:
    async with ProcessCluster(1, server, config=CONFIG) as nodes, await nodes[0].connect() as client:
        for fields, pedantic, plain in CASES:
            assert await create(client, fields, True) == pedantic, fields
            assert await create(client, fields, False) == plain, fields
