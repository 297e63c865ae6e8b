"""`$JS.API.INFO` and limits of an account with tiers: as nats-server 2.15.2 shows and checks them."""

from __future__ import annotations

from typing import Any

from jetcluster.model.limits import AccountLimits
from tests.unit.api.fakes import Client
from tests.unit.api.test_consumers import Leader

TIERS = {
    "R1": AccountLimits(max_memory=5000, max_storage=10_000, max_streams=2, max_consumers=1, replicas=1),
    "R3": AccountLimits(max_storage=3000, max_streams=1, max_ack_pending=7, storage_max_stream_bytes=2500, replicas=3),
}
LIMITS = AccountLimits(max_memory=-1, max_storage=19_000, max_streams=3, tiers=TIERS)


def tiered() -> Client:
    client = Client(limits=LIMITS)
    client.context.own_limits = client.context.limits
    return client


def error(reply: dict[str, Any]) -> int:
    found: int = reply["error"]["err_code"]
    return found


async def test_information_by_tier() -> None:
    client = tiered()
    await client.create("A", max_bytes=6000)
    await client.create("D", max_bytes=2500, num_replicas=3)
    found = await client.ask("INFO")
    assert list(found)[-1] == "tiers" and (found["streams"], found["reserved_storage"]) == (2, 8500)
    assert found["limits"] == {name: False if name == "max_bytes_required" else 0 for name in found["limits"]}
    assert found["tiers"] == {
        "R1": {
            "memory": 0, "storage": 100, "reserved_memory": 0, "reserved_storage": 6000, "streams": 1, "consumers": 3,
            "limits": TIERS["R1"].to_wire(),
        },
        "R3": {
            "memory": 0, "storage": 200, "reserved_memory": 0, "reserved_storage": 2500, "streams": 1, "consumers": 1,
            "limits": TIERS["R3"].to_wire(),
        },
    }  # fmt: skip
    # A tier that is gone while it has streams.
    client.context.limits = client.context.own_limits = lambda account: AccountLimits(tiers={"R1": TIERS["R1"]})
    gone = (await client.ask("INFO"))["tiers"]["R3"]
    assert gone["streams"] == 1 and set(gone["limits"].values()) == {0}
    assert "tiers" not in await Client().ask("INFO")


async def test_tiers_that_no_stream_can_be_in_are_shown_all_the_same() -> None:
    names = ["R", "R0", "R01", "R\u0663", "r3", "R100", "R" + "9" * 5000]
    client = Client()
    client.context.own_limits = lambda account: AccountLimits(tiers=dict.fromkeys(names, AccountLimits(max_storage=7)))
    tiers = (await client.ask("INFO"))["tiers"]
    assert {name: tier["limits"]["max_storage"] for name, tier in tiers.items() if name in names} == dict.fromkeys(
        names, 7
    )
    assert all(tiers[name]["storage"] == 0 for name in names)


async def test_streams_are_limited_by_their_tier() -> None:
    client = tiered()
    assert error(await client.create("X", num_replicas=2)) == 10120
    assert error(await client.create("X", num_replicas=7)) == 10052, "what is no number of replicas comes first"
    assert "error" not in await client.create("A", max_bytes=6000)
    assert error(await client.create("B", max_bytes=6000)) == 10047
    assert "error" not in await client.create("B", max_bytes=4000)
    assert error(await client.create("C", storage="memory")) == 10027
    assert error(await client.create("D", num_replicas=3, max_bytes=2600)) == 10122
    assert "error" not in await client.create("D", num_replicas=3, max_bytes=2500)
    assert error(await client.create("E", num_replicas=3)) == 10027
    update = {"name": "A", "subjects": ["A"], "max_bytes": 2000, "num_replicas": 3}
    assert error(await client.ask("STREAM.UPDATE.A", update)) == 10047
    assert error(await client.ask("STREAM.UPDATE.A", update | {"max_bytes": 6000})) == 10122
    assert error(await client.ask("STREAM.UPDATE.A", update | {"num_replicas": 2})) == 10120


async def test_consumers_are_limited_by_the_tier_of_their_stream() -> None:
    client = tiered()
    await client.create("A")
    await client.create("D", num_replicas=3)
    leader = Leader(client)
    for stream, most, pending in (("A", 1, 1000), ("D", 0, 7)):
        wish = {"stream_name": stream, "config": {"ack_policy": "explicit"}}
        await client.ask(f"CONSUMER.CREATE.{stream}.c", wish)
        assert (leader.last["max_consumers"], leader.last["config"]["max_ack_pending"]) == (most, pending)
