"""The lean client against a scripted server: frames split anywhere, errors, and a server that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from testkit.client import Client, ClientError, Msg, render_publish
from testkit.consumer_client import Jet

INFO = b'INFO {"server_name":"x","headers":true} \r\n'


class Script:
    """A server that sends INFO, answers PING, and hands every other piece of input to `react`."""

    def __init__(self, react: Callable[[bytes], list[bytes]]) -> None:
        self.react = react
        self.seen = b""
        self.url = ""
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(INFO)
        try:
            while data := await reader.read(65536):
                self.seen += data
                for _ in range(data.count(b"PING\r\n")):
                    writer.write(b"PONG\r\n")
                for piece in self.react(data):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted(react: Callable[[bytes], list[bytes]] = lambda _data: []) -> AsyncIterator[Script]:
    script = Script(react)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield script
        for writer in script.writers:
            writer.close()


def reply_to(data: bytes) -> bytes:
    """The reply subject of the last PUB in `data`."""
    line = next(x for x in reversed(data.split(b"\r\n")) if x.startswith(b"PUB "))
    return line.split()[2]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
async def test_an_answer_split_anywhere_is_the_same_answer(step: int) -> None:
    def react(data: bytes) -> list[bytes]:
        if b"PUB " not in data:
            return []
        header = b"NATS/1.0\r\nA: 1\r\nB: two\r\n\r\n"
        body = b"x\r\nPING\r\ny"  # what looks like protocol inside a payload is payload
        frame = b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (reply_to(data), len(header), len(header) + len(body), header, body)
        return [frame[at : at + step] for at in range(0, len(frame), step)]

    async with scripted(react) as server, await Client.connect(server.url) as client:
        msg = await client.request("s", b"?")
        assert msg.data == b"x\r\nPING\r\ny"
        assert (msg.get("A"), msg.get("B"), msg.get("C"), msg.status) == ("1", "two", None, 0)


async def test_connect_sends_credentials_and_takes_a_refusal() -> None:
    async with scripted() as server, await Client.connect(server.url.replace("//", "//ann:pw@")):
        assert b'"user": "ann"' in server.seen
        assert b'"pass": "pw"' in server.seen

    class Refuses(Script):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(INFO + b"-ERR 'Authorization Violation'\r\n")
            writer.close()

    script = Refuses(lambda _d: [])
    refusing = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    async with refusing:
        with pytest.raises(ClientError, match="Authorization Violation"):
            await Client.connect(f"127.0.0.1:{refusing.sockets[0].getsockname()[1]}")


async def test_requests_fail_when_the_server_goes() -> None:
    async with scripted() as server, await Client.connect(server.url) as client:
        waiting = client.request_soon("s")
        await client.flush()
        server.writers[0].close()
        with pytest.raises(ClientError, match="connection lost"):
            await waiting
        with pytest.raises(ClientError):
            client.publish("s", b"x")


async def test_what_is_not_nats_is_refused() -> None:
    async def http(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(http, "127.0.0.1", 0) as server:
        with pytest.raises(ClientError):
            await Client.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", within=2)


async def test_gather_ends_with_the_status() -> None:
    def react(data: bytes) -> list[bytes]:
        if b"PUB " not in data:
            return []
        reply = reply_to(data)
        sid = data.split(b"SUB " + reply)[1].split(b"\r\n")[0].strip()
        eob = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n"
        one = b"MSG %b %b 1\r\na\r\n" % (reply, sid)
        return [one * 3 + b"HMSG %b %b %d %d\r\n%b\r\n" % (reply, sid, len(eob), len(eob), eob)]

    async with scripted(react) as server, await Client.connect(server.url) as client:
        answers = await client.gather("get", b"{}")
        assert [m.data for m in answers[:-1]] == [b"a", b"a", b"a"]
        assert answers[-1].status == 204


async def test_an_ack_that_no_node_takes_is_not_confirmed() -> None:
    """The server answers it at once, by a status."""
    answers = [b"HMSG %b 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", b"MSG %b 1 0\r\n\r\n"]

    def react(data: bytes) -> list[bytes]:
        return [answers.pop(0) % reply_to(data)] if b"PUB " in data else []

    async with scripted(react) as script, await Client.connect(script.url) as client:
        jet = Jet(client, "S", 3, "jetcluster")
        delivery = Msg(b"s.a", b"$JS.ACK.S.C.1.1.1.0.0", b"", b"x")
        with pytest.raises(ClientError, match="status 503"):
            await jet.ack(delivery)
        assert (await jet.ack(delivery)).data == b""


async def test_bulk_gets_whole_lines_and_pings_are_answered() -> None:
    pieces: list[bytes] = []
    async with scripted() as server, await Client.connect(server.url) as client:
        client.bulk = pieces.append
        for part in (b"MSG a 1 2\r\nab\r", b"\nMSG a 1", b" 2\r\ncd\r\nPING\r\n"):
            server.writers[0].write(part)
            await server.writers[0].drain()
            await asyncio.sleep(0.02)
        client.bulk = None
        await client.flush()
        assert b"".join(pieces) == b"MSG a 1 2\r\nab\r\nMSG a 1 2\r\ncd\r\nPING\r\n"
        assert all(p.endswith(b"\r\n") for p in pieces)
        assert b"PONG\r\n" in server.seen


def test_render_publish() -> None:
    assert render_publish("s", b"ab") == b"PUB s  2\r\nab\r\n"
    assert render_publish("s", b"ab", b"r", {"K": "v"}) == b"HPUB s r 18 20\r\nNATS/1.0\r\nK: v\r\n\r\nab\r\n"


def test_status_of_a_header() -> None:
    assert Msg(b"s", b"", b"NATS/1.0 404 Message Not Found\r\n\r\n", b"").status == 404
    assert Msg(b"s", b"", b"NATS/1.0\r\n\r\n", b"").status == 0
