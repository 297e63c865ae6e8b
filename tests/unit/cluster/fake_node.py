"""Somebody who speaks the protocol of routes by hand, and is no node."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import ClassVar

from jetcluster.clock import SystemRng
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.auth import Greeting, Handshake, Refused, RouteCredentials, derive_key
from jetcluster.mesh.frames import Kind
from jetcluster.mesh.identity import NodeKey
from jetcluster.mesh.info import encode_info, split_url
from jetcluster.mesh.mesh import NodeMesh

SECRET = RouteCredentials("route", "secret")


class Rogue:
    """Speaks the protocol of routes by hand, with the cluster's password if it has it."""

    opened: ClassVar[list[asyncio.StreamWriter]] = []

    def __init__(
        self,
        me: NodeInfo,
        credentials: RouteCredentials | None = SECRET,
        key: NodeKey | None = None,
        cluster: str = "test",
    ) -> None:
        self.me = me
        self.cluster = cluster
        self.key = key
        self.secret = derive_key(cluster, credentials) if credentials is not None else b""
        self.signature: bytes | None = None
        """In the place of its own."""
        self.refused: Refused | None = None
        self.up = False

    async def meet(self, mesh: NodeMesh) -> Rogue:
        return await self.dial(*split_url(mesh.me.cluster_url))

    async def dial(self, host: str, port: int) -> Rogue:
        """See `up` and `refused` for what came of it."""
        self.reader, self.writer = await asyncio.open_connection(host, port)
        self.opened.append(self.writer)
        nonce = SystemRng().token(32)
        greeting = Greeting(self.me.peer_id, self.me.boot_id, self.me.name, self.cluster, nonce, bool(self.secret))
        handshake = Handshake(greeting, self.secret, dialer=True)
        self.handshake = handshake
        self.writer.write(handshake.start())
        try:
            while not handshake.done:
                self.writer.write(handshake.receive(*await self.read()))
            assert handshake.remote is not None
            decides = self.me.peer_id < handshake.remote.peer_id
            if decides:
                self.tell()
            kind, body = await self.read()
            if kind == Kind.REFUSED:
                handshake.receive(kind, body)
            assert kind == Kind.INFO
            if not decides:
                self.tell()
                kind, body = await self.read()
                if kind == Kind.REFUSED:
                    handshake.receive(kind, body)
            self.up = True
        except Refused as refusal:
            self.refused = refusal
        except asyncio.IncompleteReadError:
            pass
        return self

    def tell(self) -> None:
        signature = self.signature
        if signature is None:
            signature = self.key.sign(self.handshake.statement(dialer=True)) if self.key is not None else b""
        self.writer.write(encode_info(self.me, signature))

    async def read(self) -> tuple[int, bytes]:
        async with asyncio.timeout(5):
            (length,) = struct.unpack("!I", await self.reader.readexactly(4))
            raw = await self.reader.readexactly(length)
        return raw[0], raw[1:]

    async def closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(5):
                while await self.reader.read(65536):
                    pass
        return True

    def close(self) -> None:
        self.writer.close()

    @classmethod
    def close_all(cls) -> None:
        for writer in cls.opened:
            writer.close()
        cls.opened.clear()
