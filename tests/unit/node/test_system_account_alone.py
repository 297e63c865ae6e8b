"""`accounts { $SYS { users: [...] } }` and nothing else, the most common configuration of all: who is not of the system
account works in `$G`, with JetStream, as nats-server 2.15.2 lets him."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from testkit.client import Client, ClientError
from tests.unit.node.rig import running

JETSTREAM = "jetstream { store_dir: js }\n"
ALONE = JETSTREAM + "accounts { $SYS { users: [ {user: a, password: p} ] } }\n"


async def errors(port: int, user: str = "") -> tuple[int, str]:
    """(err_code of `$JS.API.INFO`, account)."""
    async with await Client.connect(f"nats://{user}127.0.0.1:{port}") as client:
        info = (await client.request("$JS.API.INFO")).json()
        me: dict[str, Any] = (await client.request("$SYS.REQ.USER.INFO")).json()
        return info.get("error", {}).get("err_code", 0), me["data"]["account"]


async def test_clients_without_credentials_use_the_global_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path, ALONE) as node:
        port = node.server.port
        assert await errors(port) == (0, "$G")
        assert await errors(port, "a:p@") == (10039, "$SYS")
        for wrong in ("a:x@", "b:p@"):
            with pytest.raises((ClientError, ConnectionError)):
                await errors(port, wrong)
        # Verbs before CONNECT, as with a no_auth_user.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        assert info["auth_required"] is True
        writer.write(b"PING\r\n")
        assert await asyncio.wait_for(reader.readline(), 5) == b"PONG\r\n"
        writer.close()
        # Another account closes it, and what is connected without credentials has to go.
        base = 'listen: "127.0.0.1:-1"\nserver_name: n1\n'
        async with await Client.connect(f"nats://127.0.0.1:{port}") as client:
            (tmp_path / "c.conf").write_text(base + ALONE.replace("] } }", "] }, A { jetstream: enabled } }"))
            assert node.reload("") == ""
            await asyncio.wait_for(client.closed.wait(), 5)
        with pytest.raises((ClientError, ConnectionError)):
            await errors(port)


async def test_users_of_the_global_account_have_jetstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no other account is configured."""
    monkeypatch.chdir(tmp_path)
    more = "authorization { users: [ {user: b, password: p} ] }\n"
    async with running(tmp_path, ALONE + more) as node:
        assert await errors(node.server.port, "b:p@") == (0, "$G")
        with pytest.raises((ClientError, ConnectionError)):
            await errors(node.server.port)


async def test_another_account_leaves_the_global_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path, JETSTREAM + "accounts { A {} }\n") as node:
        assert await errors(node.server.port) == (10039, "$G")
