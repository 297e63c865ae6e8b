"""`jetcluster object add` against a server that answers from a list."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.cli.commands import run_command
from jetcluster.cli.common import DONE, NOT_REACHED, REFUSED
from jetcluster.model.stream import StreamConfig
from jetcluster.objects.layout import layout_of
from tests.unit.cli.test_mirror import Servers


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


def test_refusals_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = {"code": 400, "err_code": 10058, "description": "stream name already in use"}
    assert run(Servers({"error": refusal}), "b") == REFUSED
    refusal = {"code": 400, "err_code": 10074, "description": "replicas > 1 not supported"}
    assert run(Servers({"error": refusal}), "b") == REFUSED
    said = capsys.readouterr().err
    assert "bucket b is there, with another configuration" in said and "replicas > 1" in said


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["object", "add", "b", "-s", "nats://127.0.0.1:1"]) == NOT_REACHED
    assert "nats://127.0.0.1:1" in capsys.readouterr().err
