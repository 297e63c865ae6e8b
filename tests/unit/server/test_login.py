"""Clients whose login takes time, and their input meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import pytest_asyncio

from jetcluster.auth.authenticator import Authenticator
from jetcluster.auth.secrets import SlowPart
from jetcluster.config.options import Options
from jetcluster.protocol.connection_states import CHECKING, CLOSED, CONNECTED, OPEN, RECHECKING, SETTLED
from jetcluster.server import fairness
from jetcluster.server.client import login
from jetcluster.server.fairness import MAX_LOGIN_THREADS, SlowLogins
from testkit.server_rig import QUIET, ServerRig
from testkit.twins.memory import held
from tests.unit.node.test_websocket import node_of
from tests.unit.server.serving import configured
from tests.unit.server.wire import Wire, errors, messages

from .test_refusals import BCRYPT

SLOW = QUIET.replace(b"{", b'{"name":"slow",')


class Slow(Authenticator):
    """It takes time to let in who is called `name`, until `go_on` is set."""

    def __init__(self, name: str = "slow") -> None:
        super().__init__(Options())
        self.name = name
        self.go_on = threading.Event()

    def slow_part(self, connect: Mapping[str, object]) -> SlowPart | None:
        return SlowPart(b"key", lambda: self.go_on.wait(5) and None) if connect.get("name", "") == self.name else None


@pytest.fixture
def slow() -> Iterator[Slow]:
    found = Slow()
    yield found
    found.go_on.set()


async def until_known(rig: ServerRig) -> None:
    while rig.server.parts.tasks:
        await asyncio.sleep(0.001)


async def test_input_waits_for_the_answer(slow: Slow) -> None:
    rig = ServerRig(slow)
    listener, peer = rig.client(b"SUB a 1"), rig.client(connect=b"")
    assert peer.connection.state is OPEN
    peer.send(SLOW, b"PUB a 1", b"x")
    assert peer.connection.state is CHECKING and not peer.transport.reading and listener.read() == b""
    slow.go_on.set()
    await until_known(rig)
    assert peer.connection.state is CONNECTED and peer.transport.reading and listener.read() == b"MSG a 1 1\r\nx\r\n"


async def test_one_that_has_said_no_connect_loses_nothing_meanwhile() -> None:
    slow = Slow(name="")
    rig = ServerRig(slow)
    peer, told = rig.client(connect=b""), []
    rig.router.subscribe(b"a", lambda *message: told.append(message[3]))
    peer.send(b"PUB a 1", b"x", b"PUB a 1", b"y")
    assert peer.connection.state is CHECKING and not told
    slow.go_on.set()
    await until_known(rig)
    assert told == [b"x", b"y"]


async def test_a_client_that_is_settled_still_gets_changes_while_its_next_connect_is_checked(slow: Slow) -> None:
    rig = ServerRig(slow)
    peer = rig.client(b"PING")
    assert peer.connection.state is SETTLED
    peer.send(SLOW)
    assert peer.connection.state is RECHECKING
    rig.server.announce_lame_duck()
    assert b'"ldm":true' in peer.read()
    slow.go_on.set()
    await until_known(rig)
    assert peer.connection.state is SETTLED


async def test_one_that_goes_away_after_a_reload_meanwhile_leaves_nothing(slow: Slow) -> None:
    rig = ServerRig(slow)
    peer = rig.client(b"SUB a 1")
    peer.send(SLOW, b"PUB a 1", b"x")
    rig.server.reconfigure(rig.server.options, slow)
    assert peer.connection.state is CHECKING
    peer.connection.connection_lost(None)
    assert peer.connection.state is CLOSED and not rig.server.clients and not rig.server.sockets


# Passwords of bcrypt are checked beside the event loop, and nobody who is not in yet has much read of him.


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


# The order of logins whose passwords take long to check (server/fairness.py).


class Logins:
    """Checks that wait until a test lets them go on, and what has been checked in which order."""

    def __init__(self) -> None:
        self.logins = SlowLogins()
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[bool]] = []
        self._gate = threading.Semaphore(0)

    def ask(
        self, address: str, user: str, given: str, unless: Callable[[], bool] = lambda: False
    ) -> asyncio.Future[bool]:
        def work() -> None:
            self.order.append(given)
            assert self._gate.acquire(timeout=10)

        task = asyncio.ensure_future(self.logins.check(address, user, given, work, unless))
        self.tasks.append(task)
        return task

    async def fill(self) -> None:
        """All threads are busy."""
        for number in range(MAX_LOGIN_THREADS):
            self.ask("busy", "busy", f"busy-{number}")
        while len(self.order) < MAX_LOGIN_THREADS:
            await asyncio.sleep(0.001)

    async def finish(self) -> list[str]:
        for _ in self.tasks:
            self._gate.release()
        await asyncio.gather(*self.tasks)
        return self.order[MAX_LOGIN_THREADS:]


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Logins]:
    made = Logins()
    yield made
    made.logins.stop()


async def test_one_address_does_not_stand_in_the_way_of_another(rig: Logins) -> None:
    await rig.fill()
    for number in range(50):
        rig.ask("1.1.1.1", f"user-{number}", f"wrong-{number}")
    await asyncio.sleep(0)
    rig.ask("2.2.2.2", "user-1", "right")
    await asyncio.sleep(0)
    assert rig.logins.waiting == 51
    assert (await rig.finish()).index("right") < 4


async def test_one_user_does_not_stand_in_the_way_of_another_of_the_same_address(rig: Logins) -> None:
    await rig.fill()
    for number in range(50):
        rig.ask("1.1.1.1", "guessed", f"wrong-{number}")
    rig.ask("1.1.1.1", "other", "right")
    await asyncio.sleep(0)
    assert (await rig.finish()).index("right") < 4


async def test_who_came_last_is_next_of_one_user(rig: Logins) -> None:
    await rig.fill()
    for number in range(50):
        rig.ask("1.1.1.1", "guessed", f"wrong-{number}")
    rig.ask("1.1.1.1", "guessed", "right")
    await asyncio.sleep(0)
    assert (await rig.finish()).index("right") < 2


async def test_the_same_is_checked_once(rig: Logins) -> None:
    await rig.fill()
    idle = held(rig.logins)
    asked = [rig.ask(address, "u", "same") for address in ("1.1.1.1", "2.2.2.2", "1.1.1.1")]
    await asyncio.sleep(0)
    assert await rig.finish() == ["same"]
    assert [task.result() for task in asked] == [True] * 3
    assert held(rig.logins) <= idle
    assert not rig.logins.waiting


async def test_nothing_is_checked_for_who_has_gone(rig: Logins) -> None:
    await rig.fill()
    idle = held(rig.logins)
    gone = rig.ask("1.1.1.1", "u", "gone", lambda: True)
    here = rig.ask("1.1.1.1", "u", "here")
    await asyncio.sleep(0)
    assert await rig.finish() == ["here"]
    assert not gone.result()
    assert here.result()
    assert held(rig.logins) <= idle


async def test_too_many_are_refused_of_the_address_that_has_most(rig: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "MAX_WAITING_LOGINS", 20)
    await rig.fill()
    other = rig.ask("2.2.2.2", "u", "right")
    many = [rig.ask("1.1.1.1", "u", f"wrong-{number}") for number in range(40)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rig.logins.waiting <= 20
    assert rig.logins.refused == 21
    assert [task.done() for task in many] == [True] * 21 + [False] * 19, "who has waited longest goes"
    await rig.finish()
    assert other.result()


GUARDED = """accounts { A { users: [ {user: ann, password: right} ], limits { max_payload: 10 } } }
"""


@pytest.mark.parametrize("cut", [1, 7, 30, 80])
async def test_a_connect_that_comes_in_two_reads(tmp_path: Path, cut: int) -> None:
    (tmp_path / "server.conf").write_text(f'listen: "127.0.0.1:-1"\n{GUARDED}')
    async with configured(tmp_path / "server.conf") as (server, _):
        wire = await Wire.open(server.port)
        connect = b'CONNECT {"verbose":false,"user":"ann","pass":"right","name":"%s"}\r\n' % (b"x" * 100)
        wire.writer.write(connect[:cut])
        await asyncio.sleep(0.05)
        wire.writer.write(connect[cut:])
        assert errors(await wire.settle()) == []
        early = await Wire.open(server.port)
        early.writer.write(b"PUB a 1")
        assert errors(await early.to_the_end()) == ["Authorization Violation"]


async def test_what_comes_with_a_connect_is_limited_by_its_account(tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text(f'listen: "127.0.0.1:-1"\n{GUARDED}')
    async with configured(tmp_path / "server.conf") as (server, _):
        for size, expected in ((10, []), (11, ["Maximum Payload Violation"])):
            wire = await Wire.open(server.port)
            frames = await wire.ask(
                'CONNECT {"verbose":false,"user":"ann","pass":"right"}', f"PUB a {size}", "x" * size
            )
            assert errors(frames) == expected
