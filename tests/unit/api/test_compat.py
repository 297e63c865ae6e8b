"""Effects of `compat` in the API: the node that takes the request decides, and writes it into what it asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.api.request import SEED_CODES, renumbered
from jetcluster.config.options import PRESETS, CompatOptions
from jetcluster.errors import TABLE, by_code
from jetcluster.model.limits import AccountLimits
from tests.unit.api.fake_cluster import Client
from tests.unit.api.test_consumers import Leader, started

NONE, EXPLICIT = {"ack_policy": "none"}, {"ack_policy": "explicit"}


def follow(client: Client, preset: str) -> None:
    client.context.compat = PRESETS[preset]


async def sent(client: Client, leader: Leader, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration that the leader is asked to create."""
    await client.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    found: dict[str, Any] = leader.last["config"]
    return found


async def test_a_consumer_without_ack_policy_acknowledges_nothing() -> None:
    """nats-server 2.15.2, asked with pull and push, durable and ephemeral. Published clients leave `none` out."""
    client, leader = await started()
    for config in ({}, {"ack_policy": ""}, {"durable_name": "c"}, {"deliver_subject": "in.box"}):
        config = await sent(client, leader, config)
        assert (config["ack_policy"], config.get("ack_wait"), config.get("max_ack_pending")) == ("none", None, None)
    assert (await sent(client, leader, EXPLICIT))["ack_policy"] == "explicit"
    body = {"stream_name": "S", "config": {"deliver_subject": "in.box", "max_ack_pending": 5}}
    refused = await client.ask("CONSUMER.CREATE.S.c", body)
    assert refused["error"]["err_code"] == 10082


async def test_empty_policies_are_refused_where_nats_server_refuses_them() -> None:
    """nats-server 2.15.2, asked with each."""
    client, leader = await started()
    for key in ("ack_policy", "deliver_policy", "replay_policy", "priority_policy"):
        for value, said in (("", '"\\"\\""'), (None, '"null"')):
            client.context.compat = CompatOptions()
            default = await sent(client, leader, {})
            assert await sent(client, leader, {key: value}) == default
            follow(client, "nats-server")
            body = {"stream_name": "S", "config": {"name": "c", key: value}}
            error = (await client.ask("CONSUMER.CREATE.S.c", body))["error"]
            text = f"can not unmarshal {said}"
            if key == "priority_policy":
                text = f"unknown priority policy: {json.dumps(value)}"
            assert error == {"code": 400, "err_code": 10025, "description": f"invalid JSON: {text}"}
    assert await sent(client, leader, {"pause_until": None, "max_deliver": None}) == default, "other keys may be null"


async def test_without_ack_policy_on_a_work_queue(client: Client) -> None:
    await client.create("S", subjects=["s"], retention="workqueue")
    Leader(client)
    refused = await client.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {}})
    assert refused["error"]["err_code"] == 10084
    follow(client, "seeds")
    assert "error" not in await client.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {}})


async def test_a_consumer_without_ack_policy_by_the_specification() -> None:
    client, leader = await started()
    follow(client, "seeds")
    for config in ({}, {"ack_policy": ""}, {"deliver_subject": "in.box"}):
        assert (await sent(client, leader, config))["ack_policy"] == "explicit"
    assert (await sent(client, leader, NONE))["ack_policy"] == "none"


@pytest.mark.parametrize(
    ("preset", "given", "direct"),
    [
        ("seeds", {"max_msgs_per_subject": 1, "allow_direct": False}, True),
        ("seeds", {}, False),
        ("nats-server", {"max_msgs_per_subject": 1}, False),
        ("nats-server", {"max_msgs_per_subject": 1, "allow_direct": True}, True),
    ],
)
async def test_allow_direct(preset: str, given: dict[str, Any], direct: bool, client: Client) -> None:
    follow(client, preset)
    reply = await client.create("S", subjects=["s"], **given)
    assert reply["config"].get("allow_direct", False) is direct
    updated = await client.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s", "t"], **given})
    assert updated["config"].get("allow_direct", False) is direct
    pedantic = await client.create("P", subjects=["p"], pedantic=True, max_msgs_per_subject=1)
    assert ("error" in pedantic) is (preset == "seeds"), "there it has to say allow_direct itself"


async def test_error_numbers() -> None:
    client, leader = await started()

    async def numbers() -> list[tuple[int, int, str]]:
        errors = []
        leader.error = by_code(10148)
        for subject, body in (
            ("STREAM.INFO.NONE", None),
            ("CONSUMER.INFO.NONE.c", None),
            ("STREAM.CREATE.T", {"name": "T", "subjects": ["s.a"]}),
            ("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {}, "action": "create"}),
            ("STREAM.CREATE.S", {"name": "S", "subjects": ["other"]}),
        ):
            error = (await client.ask(subject, body))["error"]
            errors.append((error["code"], error["err_code"], error["description"]))
        return errors

    real = await numbers()
    assert [number for _, number, _ in real] == [10059, 10059, 10065, 10148, 10058]
    follow(client, "seeds")
    seeds = await numbers()
    assert [number for _, number, _ in seeds] == [10039, 10039, 10059, 10071, 10058]
    assert [(code, text) for code, _, text in seeds] == [(code, text) for code, _, text in real]


def test_all_other_errors_keep_their_numbers() -> None:
    for number, (_, text) in TABLE.items():
        if number not in SEED_CODES and "{" not in text:
            assert renumbered(by_code(number)).err_code == number
    assert set(SEED_CODES) <= set(TABLE)


async def test_duplicate_window_max_in_account_information() -> None:
    client = Client(limits=AccountLimits(duplicate_window_max=60_000_000_000))
    client.context.own_limits = client.context.limits
    assert "duplicate_window_max" not in (await client.ask("INFO"))["limits"]
    follow(client, "seeds")
    assert (await client.ask("INFO"))["limits"]["duplicate_window_max"] == 60_000_000_000
