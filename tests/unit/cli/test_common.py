"""Parts that several commands share."""

from __future__ import annotations

import pytest

from jetcluster.cli.common import DONE, NOT_REACHED, REFUSED, ServerRefusedError, connected, fail, shown
from jetcluster.client.connection import Connection
from jetcluster.client.credentials import Credentials
from jetcluster.client.servers import ServerOptions
from tests.unit.client.fake_server import Peer, msg


def test_a_failure_is_printed_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("mirror", "there is another stream", REFUSED) == REFUSED
    out, err = capsys.readouterr()
    assert (out, err) == ("", "jetcluster mirror: there is another stream\n")


def test_urls_are_shown_without_users() -> None:
    assert shown(ServerOptions(("nats://u:p@a:1", "b:2"))) == ["nats://a:1", "b:2"]


def test_exit_codes_of_a_command_that_asks_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    def of_api(error: bytes) -> int:
        with Peer(lambda _s, r, _h, _p: msg(r, error)) as peer:
            return connected("x", ServerOptions((peer.url,)), lambda c: c.api("Y", timeout=2.0) and DONE)

    def refuse(_: Connection) -> int:
        raise ServerRefusedError("not so")

    assert of_api(b'{"ok":true}') == DONE
    assert of_api(b'{"error":{"code":400,"err_code":10003,"description":"bad request"}}') == REFUSED
    assert of_api(b'{"error":{"code":503,"err_code":10008,"description":"unavailable"}}') == NOT_REACHED
    capsys.readouterr()
    with Peer() as peer:
        assert connected("x", ServerOptions((peer.url,)), refuse) == REFUSED
        assert connected("x", ServerOptions((peer.url,), Credentials(creds_file="/not/there")), refuse) == NOT_REACHED
    assert connected("x", ServerOptions(("nats://u:p@127.0.0.1:1",)), refuse) == NOT_REACHED
    with Peer(greeting=b"INFO {}\r\n-ERR 'Authorization Violation'\r\n") as peer:
        assert connected("x", ServerOptions((peer.url,)), refuse) == NOT_REACHED
        url = peer.url
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "jetcluster x: not so"
    assert lines[1].startswith("jetcluster x: nats://127.0.0.1:") and "credentials file /not/there" in lines[1]
    assert lines[2].startswith("jetcluster x: no server could be reached: nats://127.0.0.1:1: ")
    assert lines[3] == f"jetcluster x: {url}: Authorization Violation"
