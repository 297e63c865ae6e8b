"""Operator mode of a whole node whose accounts are known by a web server (`resolver: URL(...)`)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from jetcluster.auth.resolver import UrlStore
from jetcluster.node.operator_mode import NodeOperator
from testkit.certificates import Authority
from tests.signer import Operator
from tests.unit.node.rig import running
from tests.unit.node.test_operator_mode import Memory, eventually, log_in, refused
from tests.unit.server.wire import Wire


class Web:
    """A web server with the JWTs of accounts."""

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        self.asked: list[str] = []
        self.slow = asyncio.Event()
        self.slow.set()
        self.port = 0

    async def __aenter__(self) -> Web:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        account = line.split()[1].decode().rpartition("/")[2]
        self.asked.append(account)
        await self.slow.wait()
        body = self.tokens.get(account, "")
        status = "200 OK" if body or not account else "404 Not Found"
        writer.write(f"HTTP/1.0 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()


async def test_a_web_server_knows_the_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login waits for the answer, and what came behind its CONNECT with it."""
    monkeypatch.setattr(NodeOperator, "_ask_first", lambda _self, store, _system: store)  # it would wait for this loop
    case = Memory()
    operator = f'operator: "{case.operator.jwt}"\nsystem_account: {case.system.public}\n'
    async with Web() as web:
        web.tokens = {case.account.public: case.account.jwt}
        resolver = f"resolver: 'URL(\"http://127.0.0.1:{web.port}/jwt/v1/accounts/\")'\n"
        async with running(tmp_path, operator + resolver) as node:
            web.slow.clear()
            user, wire = case.account.user(), await Wire.open(node.server.port)
            connect = user.connect(wire.info["nonce"].encode()) | {"verbose": False, "protocol": 0}
            wire.send(f"CONNECT {json.dumps(connect)}", "SUB x 1", "PUB x 2", "hi", "PING")
            await eventually(lambda: bool(web.asked))
            wire.send("PUB x 3", "you", "PING")
            await asyncio.sleep(0.05)
            web.slow.set()
            frames = [await wire.frame() for _ in range(4)]
            assert [frame and (frame.verb, frame.payload) for frame in frames] == [
                ("MSG", b"hi"), ("PONG", b""), ("MSG", b"you"), ("PONG", b""),
            ]  # fmt: skip
            await log_in(node, case.account.user())
            assert web.asked == [case.account.public]
            unknown, foreign = case.operator.account("unknown"), Operator().account("foreign")
            web.tokens[foreign.public] = foreign.jwt
            for account in (unknown, foreign, unknown):
                assert await refused(node, account.user())
            assert web.asked[1:] == [unknown.public, foreign.public]  # not again so soon
            gone = await Wire.open(node.server.port)
            web.slow.clear()
            late = case.operator.account("late")
            gone.send(f"CONNECT {json.dumps(late.user().connect(gone.info['nonce'].encode()))}", "PING")
            await eventually(lambda: late.public in web.asked)
            gone.writer.transport.abort()
            await eventually(lambda: len(node.server.clients) == 2)
            web.slow.set()


async def test_a_reload_changes_the_tls_to_the_web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeOperator, "_ask_first", lambda _self, store, _system: store)
    case = Memory()
    text = f'operator: "{case.operator.jwt}"\nsystem_account: {case.system.public}\n'
    text += "resolver: 'URL(\"http://127.0.0.1:1/jwt/v1/accounts/\")'\n"
    authority = Authority(tmp_path)
    async with running(tmp_path, text) as node:
        assert node.operator is not None
        store = node.operator.resolver
        assert isinstance(store, UrlStore) and store.tls is None
        path = tmp_path / "c.conf"
        path.write_text(path.read_text() + f'resolver_tls {{ ca_file: "{authority.file}" }}\n')
        assert node.reload() == ""
        assert node.operator.resolver is store and store.tls is not None
        assert store.tls.ca_file == str(authority.file)
