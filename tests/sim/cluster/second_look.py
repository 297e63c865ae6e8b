"""All servers start again once everything is done and judged, and report what they reported before: what only exams
made, and nothing restarted since, is on disk as well.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Session
from tests.sim.cluster import liveness, replicas
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.workload import PASSING

TELLS = 60.0
"""Seconds within which every stream and consumer tells of itself."""
PASSING_BY = ("ts", "cluster", "created", "last_active", "num_waiting", "members", "spilled", "push_bound",
              "pause_remaining", "delivered_at", "lag", "active", "first_ts", "last_ts")  # fmt: skip
"""Fields of answers that time changes, or that tell who is asked."""
MOVING = ("mirror", "sources", "max_age", "allow_msg_ttl", "allow_msg_schedules")
"""Fields of a configuration by which a stream changes while nobody does anything."""
LINKED = "flow_control"
"""The ack policy of the consumer of a mirror or source: each attempt of its link sets it back."""
Told = dict[str, Any]
"""Answers of the API about each stream and consumer, by its name."""


async def look_again(deployment: Deployment, rng: Random) -> None:
    """Raises Violation. Ends of processes and losses of power, of all servers at a time."""
    powerless = rng.random() < 0.5
    before = await _told(deployment, powerless=powerless)
    deployment.trace.add("nemesis", f"all servers {'lose power' if powerless else 'are killed'} and start again")
    for machine in deployment.machines.values():
        if powerless:
            machine.lose_power()
        else:
            machine.kill()
    for machine in deployment.machines.values():
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        start(machine)
    await liveness.settle(deployment)
    await replicas.settle(deployment)
    compare(before, await _told(deployment, powerless=powerless))


def compare(before: Told, now: Told) -> None:
    """Raises Violation."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, "nothing"), now.get(name, "nothing")
        if old != new:
            raise Violation(f"after all servers have started again, {name}: {_difference(old, new)}")


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        return ", ".join(f"{key}: {_difference(old.get(key), new.get(key))}" for key in keys)
    return f"{new}, and before {old}"


async def _told(deployment: Deployment, *, powerless: bool) -> Told:
    """Asks the API of the main cluster about the account that clients have by default."""
    session = Session("second-look", deployment.addresses())
    await session.connect()
    end = deployment.scheduler.now + TELLS
    try:
        while True:
            try:
                return await _ask(session, deployment, powerless=powerless)
            except PASSING as error:
                if deployment.scheduler.now > end:
                    raise Violation(f"streams do not tell of themselves for {TELLS} s: {error!r}") from error
            await asyncio.sleep(0.3)
    finally:
        await session.close()


async def _ask(session: Session, deployment: Deployment, *, powerless: bool) -> Told:
    told: Told = {}
    for name in (await session.api("STREAM.NAMES"))["streams"] or ():
        info = await session.api(f"STREAM.INFO.{name}", {"deleted_details": True, "subjects_filter": ">"})
        config = info["config"]
        if not _lasts(config, deployment, powerless=powerless):
            continue
        told[f"stream {name}"] = {"config": config}
        if not any(config.get(field) for field in MOVING):
            told[f"stream {name}"] |= _plain(info["state"])
        consumers = (await session.api(f"CONSUMER.LIST.{name}"))["consumers"] or ()
        lasting = [consumer for consumer in consumers if not consumer["config"].get("inactive_threshold")]
        told[f"stream {name}"]["consumer_count"] = len(lasting)  # of all, the state's number: some end meanwhile
        for consumer in lasting:
            if consumer["config"]["ack_policy"] != LINKED:
                told[f"consumer {name} > {consumer['name']}"] = _plain(consumer)
    return told


def _lasts(config: dict[str, Any], deployment: Deployment, *, powerless: bool) -> bool:
    """A stream in memory is gone with the last process, and what waits for a sync with the power."""
    return config.get("storage") != "memory" and not (powerless and deployment.relaxed)


def _plain(value: Any) -> Any:
    """The value without what passes by."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if key not in PASSING_BY}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
