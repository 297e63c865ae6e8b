"""Passwords of bcrypt are checked beside the event loop, and nobody who is not in yet has much read of him."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from jetcluster.server.client import login
from tests.unit.node.test_websocket import node_of
from tests.unit.server.rig import configured
from tests.unit.server.wire import Wire, errors, messages

from .test_refusals import BCRYPT

pytestmark = pytest.mark.usefixtures("closed_wires")

VIOLATION = "Authorization Violation"
USERS = (
    f'authorization {{ timeout: 0.5, users: [ {{user: slow, password: "{BCRYPT}"}}, {{user: plain, password: p}} ] }}'
)


class Gate:
    """bcrypt.checkpw that waits, and counts; never on the event loop's thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.asked = 0
        self._slowly = threading.Event()
        self._loop_thread = threading.get_ident()
        self._real: Any = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self._check)

    def _check(self, given: bytes, stored: bytes) -> bool:
        assert threading.get_ident() != self._loop_thread, "the event loop stands still"
        self.asked += 1
        while not self.open.wait(0.01):
            if self._slowly.is_set():
                time.sleep(0.05)
                break
        return bool(self._real(given, stored))

    def one_by_one(self) -> None:
        """Each takes a moment from now on."""
        self._slowly.set()

    async def asked_for(self, times: int) -> None:
        while self.asked < times:
            await asyncio.sleep(0.001)


async def test_others_are_served_while_a_password_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gate = Gate(monkeypatch)
    (tmp_path / "server.conf").write_text(USERS)
    async with configured(tmp_path / "server.conf") as (server, _):
        plain = await Wire.open(server.port)
        assert errors(await plain.log_in(user="plain", **{"pass": "p"})) == []
        await plain.ask("SUB > 1")
        slow, wrong = await Wire.open(server.port), await Wire.open(server.port)
        behind = 'CONNECT {"verbose":false,"user":"slow","pass":"%s"}'
        slow.send(behind % "right", "PUB a 1", "x")
        wrong.send(behind % "wrong", "PUB a 1", "y")
        await gate.asked_for(2)
        assert messages(await plain.settle()) == []  # answered meanwhile, and nothing is done for the others yet
        gate.open.set()
        assert errors(await slow.settle()) == []
        assert errors(await wrong.settle()) == [VIOLATION]
        assert [frame.payload for frame in messages(await plain.settle())] == [b"x"]
        again = await Wire.open(server.port)  # remembered
        assert errors(await again.log_in(user="slow", **{"pass": "right"})) == []
        assert gate.asked == 2
        unknown = await Wire.open(server.port)
        assert errors(await unknown.log_in(user="nobody", **{"pass": "right"})) == [VIOLATION]
        assert gate.asked == 2


async def test_who_goes_or_waits_too_long_costs_no_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(login, "SLOW_LOGIN_SECONDS", 0.5)
    gate = Gate(monkeypatch)
    (tmp_path / "server.conf").write_text(USERS)
    async with configured(tmp_path / "server.conf") as (server, _):
        wires = [await Wire.open(server.port) for _ in range(6)]
        for number, wire in enumerate(wires):
            wire.send(f'CONNECT {{"verbose":false,"user":"slow","pass":"wrong-{number}"}}', "PING")
        await gate.asked_for(2)
        await wires[5].close()
        for wire in wires[:5]:
            assert errors(await wire.to_the_end()) == ["Authentication Timeout"]
        async with asyncio.timeout(5):
            while server.clients:
                await asyncio.sleep(0.001)
        gate.open.set()
        await asyncio.sleep(0.05)
        assert gate.asked == 2  # two threads had begun; the others' turn came when nobody was there any more
        assert not server.clients


async def test_a_right_password_is_not_kept_waiting_by_wrong_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wrong ones are of the same user, from the same address, and take longer than the time for a login."""
    gate = Gate(monkeypatch)
    (tmp_path / "server.conf").write_text(USERS.replace("timeout: 0.5", "timeout: 0.2"))
    async with configured(tmp_path / "server.conf") as (server, _):
        wires = [await Wire.open(server.port) for _ in range(30)]
        for number, wire in enumerate(wires):
            wire.send(f'CONNECT {{"verbose":false,"user":"slow","pass":"wrong-{number}"}}', "PING")
        await gate.asked_for(2)
        genuine = await Wire.open(server.port)
        genuine.send('CONNECT {"verbose":false,"user":"slow","pass":"right"}', "PING")
        await asyncio.sleep(0.3)
        gate.one_by_one()
        assert errors(await genuine.settle()) == []
        assert gate.asked <= 6, "it was next, when the two that had begun were done"
        gate.open.set()
        for wire in wires:
            assert errors(await wire.to_the_end()) == [VIOLATION]


async def test_the_same_wrong_password_is_checked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gate = Gate(monkeypatch)
    (tmp_path / "server.conf").write_text(USERS)
    async with configured(tmp_path / "server.conf") as (server, _):
        wires = [await Wire.open(server.port) for _ in range(20)]
        for wire in wires:
            wire.send('CONNECT {"verbose":false,"user":"slow","pass":"wrong"}', "PING")
        await gate.asked_for(1)
        gate.open.set()
        for wire in wires:
            assert errors(await wire.to_the_end()) == [VIOLATION]
        assert gate.asked == 1


async def test_a_strangers_message_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text(USERS)
    async with configured(tmp_path / "server.conf") as (server, _):
        for text in (b"PUB a 1000000\r\n" + b"x" * 1000, b"P", b"\r\n", b"SUB a"):
            wire = await Wire.open(server.port)
            wire.writer.write(text)
            async with asyncio.timeout(0.3):
                assert errors(await wire.to_the_end()) == [VIOLATION], text
        twin = await Wire.open(server.port)
        twin.writer.write(b"c")
        assert errors(await twin.ask('onnect {"verbose":false,"user":"plain","pass":"p"}', "PUB a 0", "")) == []


@pytest.mark.parametrize("own", [True, False], ids=["leafnodes.authorization", "users"])
async def test_leafs_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: bool) -> None:
    gate = Gate(monkeypatch)
    users = f'users: [ {{user: slow, password: "{BCRYPT}"}} ]'
    text = f"authorization {{ {users if not own else 'user: x, password: y'} }}\n"
    text += f'leafnodes {{ listen: "127.0.0.1:-1"{f", authorization {{ {users} }}" if own else ""} }}\n'
    async with node_of(tmp_path, text) as node:
        links = []
        for password in ("right", "wrong"):
            wire = await Wire.open(node.leafnodes.port)
            connect = {"user": "slow", "pass": password, "server_id": f"N{password}", "name": password, "protocol": 3}
            wire.send(f"CONNECT {json.dumps(connect)}", "PING", "LS+ a")
            links.append(wire)
        await gate.asked_for(2)
        assert node.leafnodes.links == []
        gate.open.set()
        assert errors(await links[0].settle()) == []
        assert errors(await links[1].settle()) == [VIOLATION]
        await links[0].settle()
        assert [(link.remote_name, link.wanted) for link in node.leafnodes.links] == [("right", 1)]
