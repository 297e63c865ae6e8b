"""`jetcluster mirror` and `jetcluster object add` against servers that answer from a list."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.cli.commands import run_command
from jetcluster.cli.common import DONE, NOT_REACHED, REFUSED
from jetcluster.cli.streams import run_mirror
from jetcluster.client.servers import ServerOptions
from jetcluster.model.stream import StreamConfig
from jetcluster.objects.layout import layout_of

INFO = b'INFO {"server_id":"x","version":"2.12.0","headers":true,"max_payload":1048576} \r\n'


class Servers:
    """Answers each request with the next of `answers`; notes what was asked."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while line := (await reader.readline()).split():
            if line[0] == b"PING":
                writer.write(b"PONG\r\n")
            elif line[0] == b"PUB":
                body = (await reader.readexactly(int(line[-1]) + 2))[:-2]
                self.asked.append((line[1].decode().removeprefix("$JS.API.STREAM."), json.loads(body or b"{}")))
                answer = json.dumps(self.answers.pop(0)).encode()
                writer.write(b"MSG %b 1 %d\r\n%b\r\n" % (line[2], len(answer), answer))
        writer.close()

    def run(self, **more: Any) -> int:
        """The exit code of the command."""

        async def body() -> int:
            server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            words = {"stream": "S", "domain": "hub", "name": "", "replicas": 1, "within": 5.0, **more}
            code = await asyncio.to_thread(run_mirror, ServerOptions((url,)), **words)
            server.close()
            return code

        return asyncio.run(body())


def error(code: int) -> dict[str, Any]:
    return {"error": {"code": 404, "err_code": code, "description": f"no {code}"}}


def mirrors(name: str, api: str) -> dict[str, Any]:
    return {"config": {"name": "S", "mirror": {"name": name, "external": {"api": api}}}}


def test_a_mirror_that_is_not_there_is_made() -> None:
    servers = Servers(error(10059), {"config": {}})
    assert servers.run(replicas=3) == DONE
    assert [subject for subject, _ in servers.asked] == ["INFO.S", "CREATE.S"]
    config = servers.asked[1][1]
    assert config["mirror"] == {"name": "S", "external": {"api": "$JS.hub.API"}}
    assert (config["num_replicas"], config["mirror_direct"], config["allow_direct"]) == (3, True, True)


def test_a_mirror_that_is_not_there_by_the_number_of_the_specification() -> None:
    servers = Servers(error(10039), {"config": {}})
    assert servers.run() == DONE
    assert len(servers.asked) == 2
    no_account = {"error": {"code": 503, "err_code": 10039, "description": "not enabled for account"}}
    servers = Servers(no_account)
    assert servers.run() == REFUSED, "the other error of that number"


def test_a_mirror_that_is_there_stays(capsys: pytest.CaptureFixture[str]) -> None:
    servers = Servers(mirrors("S", "$JS.hub.API"))
    assert servers.run() == DONE
    assert len(servers.asked) == 1
    assert "already" in capsys.readouterr().out


@pytest.mark.parametrize("found", [mirrors("T", "$JS.hub.API"), mirrors("S", "$JS.x.API"), {"config": {"name": "S"}}])
def test_another_stream_of_that_name(found: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert Servers(found).run() == REFUSED
    assert "does not mirror S of hub" in capsys.readouterr().err


def test_servers_that_are_not_ready_are_asked_again() -> None:
    servers = Servers(error(10008), error(10059), error(10005), mirrors("S", "$JS.hub.API"))
    assert servers.run() == DONE
    assert len(servers.asked) == 4


def test_what_is_refused_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert Servers(error(10059), error(10047)).run() == REFUSED
    assert "no 10047" in capsys.readouterr().err


def test_nobody_there() -> None:
    assert run_mirror(ServerOptions(("nats://127.0.0.1:1",)), "S", "", "", 1, 1.0) == NOT_REACHED


def run(servers: Servers, *words: str, before: str = "") -> int:
    """The exit code of the command."""

    async def body() -> int:
        server = await asyncio.start_server(servers.serve, "127.0.0.1", 0)
        urls = f"{before}nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        code = await asyncio.to_thread(run_command, ["object", "add", *words, "-s", urls])
        server.close()
        return code

    return asyncio.run(body())


def test_a_bucket_has_the_subjects_of_both_kinds_of_clients(capsys: pytest.CaptureFixture[str]) -> None:
    servers = Servers({"config": {}})
    assert run(servers, "b", "--replicas", "3", "--ttl", "1.5", "--max-bytes", "1000") == DONE
    ((subject, config),) = servers.asked
    assert subject == "CREATE.OBJ_b"
    assert config["subjects"] == ["$O.b.C.>", "$O.b.M.>", "$OBJ.b.>"]
    assert (config["num_replicas"], config["max_age"], config["max_bytes"]) == (3, 1_500_000_000, 1000)
    layout = layout_of(StreamConfig.model_validate(config).to_wire())
    assert layout is not None and layout.own and layout.real
    assert "bucket b is ready" in capsys.readouterr().out


def test_the_next_server_is_asked_when_one_is_away() -> None:
    assert run(Servers({"config": {}}), "b", before="nats://127.0.0.1:1,") == DONE


def test_refusals_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = {"code": 400, "err_code": 10058, "description": "stream name already in use"}
    assert run(Servers({"error": refusal}), "b") == REFUSED
    refusal = {"code": 400, "err_code": 10074, "description": "replicas > 1 not supported"}
    assert run(Servers({"error": refusal}), "b") == REFUSED
    said = capsys.readouterr().err
    assert "bucket b is there, with another configuration" in said and "replicas > 1" in said


def test_nobody_there_to_make_a_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["object", "add", "b", "-s", "nats://127.0.0.1:1"]) == NOT_REACHED
    assert "nats://127.0.0.1:1" in capsys.readouterr().err
