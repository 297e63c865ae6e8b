"""Exports, imports and mappings: the same accounts and the same publishes at our server and at nats-server; every
client gets the same."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testkit.harness import find_server
from tests.interop import random_sharing
from tests.interop.import_scenarios import SCENARIOS, Scenario
from tests.interop.oracle import ours, theirs
from tests.unit.config.import_cases import CASES
from tests.unit.server.serving import Reload
from tests.unit.server.wire import Frame, Wire, close_all

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("closed_wires"), pytest.mark.thorough]

Seen = list[tuple[str, str, list[tuple[str, ...]]]]


async def played(port: int, scenario: Scenario, reload: Reload | None = None) -> Seen:
    """(step, user, frames): what each user got after each step. `reload` is for the step RELOAD."""
    wires: dict[str, Wire] = {}
    replies: dict[str, str] = {}
    for user in scenario.users:
        wires[user] = await Wire.open(port)
        await wires[user].log_in(user=user, **{"pass": "p", "version": "1", "lang": "x", "name": "n"})
    seen: Seen = []
    for step in scenario.steps:
        user, _, command = step.partition(": ")
        if command == "RELOAD":
            assert reload is not None
            await reload()
        elif command != "WAIT":
            _act(wires[user], command, replies.get(user, ""))
        early = await wires[user].settle()
        if scenario.waits:  # for what the server tells on its own, a little later
            await asyncio.sleep(0.4 if command == "WAIT" else 0.05)
        for name in (user, *(other for other in wires if other != user)):
            frames = (early if name == user else []) + await wires[name].settle()
            found = [frame.reply for frame in frames if frame.reply]
            if found:
                replies[name] = next((reply for reply in found if reply.startswith("_R_.")), found[-1])
            if frames:
                seen.append((step, name, sorted(_shown(frame) for frame in frames)))
    await close_all()
    return seen


def _act(wire: Wire, command: str, reply: str) -> None:
    """`PUB subject [reply] | payload`, `HPUB subject [reply] | header | payload`, `REPLY payload [-> reply]`, `ANSWER
    payload` to a request by a service import if there was one, or a line as it is."""
    verb, _, rest = command.partition(" ")
    if verb == "PUB":
        subjects, _, payload = rest.partition(" | ")
        wire.send(f"PUB {subjects} {len(payload)}", payload)
    elif verb == "HPUB":
        subjects, header, payload = rest.split(" | ")
        block = f"NATS/1.0\r\n{header}\r\n\r\n"
        wire.send(f"HPUB {subjects} {len(block)} {len(block) + len(payload)}", block + payload)
    elif verb == "ANSWER" and not reply.startswith("_R_."):
        return
    elif verb in ("REPLY", "ANSWER"):
        subject, _, back = reply.partition(" ")
        payload, _, back = rest.partition(" -> ")
        wire.send(f"PUB {subject} {back + ' ' if back else ''}{len(payload)}", payload)
    else:
        wire.send(command)


def _shown(frame: Frame) -> tuple[str, ...]:
    if frame.verb not in ("MSG", "HMSG"):
        return frame.verb, _named(frame.text)
    if frame.payload.startswith(b"NATS/1.0 503"):  # one of those that take the reply gets it, no matter which
        return frame.verb, frame.subject, _steady(frame.payload.decode())
    return frame.verb, _named(frame.subject), frame.sid, _named(frame.reply), _steady(frame.payload.decode())


def _named(text: str) -> str:
    """Without the names that a server makes itself."""
    return re.sub(r"_R_\.\w+\.\w+(\.\w+\.T)?", "_R_", text)


def _steady(text: str) -> str:
    """Without what is another at each server and time."""
    if text.startswith('{"type":"io.nats.server.metric'):
        return json.dumps(_metric(json.loads(text)))
    return re.sub(r"(Nats-Request-Info: )(\{.*?\})(\r\n)", lambda m: m[1] + json.dumps(_info(m[2])) + m[3], text)


def _info(text: str) -> dict[str, Any]:
    found = json.loads(text)
    volatile = {"rtt", "start", "id", "server", "cluster"}
    return {key: "..." if key in volatile else value for key, value in found.items() if key != "rtt"}


def _metric(found: dict[str, Any]) -> dict[str, Any]:
    for key in ("requestor", "responder"):
        if key in found:
            found[key] = _info(json.dumps(found[key]))
    return {
        key: "..." if key in {"id", "timestamp", "start", "service", "system", "total"} else value
        for key, value in found.items()
    }


def _to(scenario: Scenario, file: Path, reload: Reload) -> Reload:
    async def change() -> None:
        file.write_text(scenario.later)
        await reload()

    return change


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_every_client_gets_the_same(tmp_path: Path, scenario: Scenario) -> None:
    file = tmp_path / "server.conf"
    file.write_text(scenario.config)
    async with theirs(file) as (port, reload):
        expected = await played(port, scenario, _to(scenario, file, reload))
    file.write_text(scenario.config)
    async with ours(file) as (port, reload):
        found = await played(port, scenario, _to(scenario, file, reload))
    assert found == expected
    assert expected, "a scenario in which nobody gets anything shows nothing"


@pytest.mark.parametrize("seed", range(6))
async def test_random_accounts_share_alike(tmp_path: Path, seed: int) -> None:
    await test_every_client_gets_the_same(tmp_path, random_sharing.scenario(seed))


def test_configurations_are_judged_alike(tmp_path: Path) -> None:
    """That ours says so is tests/unit/config/test_exports_block.py's to show."""
    command = find_server("nats-server")
    if command is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    wrong = []
    for config, expected in CASES:
        (tmp_path / "c.conf").write_text(config + "\n")
        # It reads the keys of a map in random order: of several mistakes it may tell another one first.
        told = next((v for v in (_verdict(command, tmp_path) for _ in range(8)) if v == expected), None)
        if told is None:
            wrong.append((config, _verdict(command, tmp_path), expected))
    assert wrong == []


def _verdict(command: list[str], folder: Path) -> str:
    asked = subprocess.run([*command, "-t", "-c", "c.conf"], cwd=folder, capture_output=True, text=True, check=False)
    return asked.stderr.removeprefix("nats-server: ").strip() if asked.returncode else ""
