"""The options of the connection, and that every command that asks a server has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from jetcluster.cli.commands import run_command
from jetcluster.cli.common import DONE, NOT_REACHED
from jetcluster.cli.options import connects, seconds
from jetcluster.client.credentials import Secrets
from jetcluster.client.servers import ServerOptions

app = typer.Typer()
LATER = Secrets(user="eu", password="ep", tls_ca="/c.pem", tls_first=True)
got: list[tuple[ServerOptions, str]] = []


@app.command()
@connects
def one(servers: ServerOptions, domain: str = "mine") -> None:
    """Is a command."""
    got.append((servers, domain))


def run(*words: str) -> int:
    try:
        app(args=list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_durations() -> None:
    assert [seconds(text) for text in ("5", "0.5", "500ms", "1m", "2s")] == [5.0, 0.5, 0.5, 60.0, 2.0]
    for bad in ("", "x", "0", "-1s", "5 s", "nan", "1e9"):
        with pytest.raises(typer.BadParameter):
            seconds(bad)


def test_options_go_before_variables_which_go_before_the_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"url": "nats://c:1", "user": "cu", "password": "cp", "ca": "/c.pem"}))
    monkeypatch.setenv("NATS_CONTEXT", str(tmp_path / "c.json"))
    got.clear()
    assert run() == 0
    monkeypatch.setenv("NATS_URL", "nats://e:1")
    monkeypatch.setenv("NATS_USER", "eu")
    monkeypatch.setenv("NATS_PASSWORD", "ep")
    monkeypatch.setenv("NATS_TIMEOUT", "250ms")
    monkeypatch.setenv("NATS_CA", "")
    assert run("--domain", "yours", "--js-domain", "hub") == 0
    assert run("-s", "nats://o:1,nats://p:2", "--token", "t", "--tlsfirst", "--timeout", "3s") == 0
    assert run("--creds", "/x.creds", "--no-context") == 0
    assert [(o.servers, o.credentials, o.connect_timeout, o.domain, own) for o, own in got] == [
        (("nats://c:1",), Secrets(user="cu", password="cp", tls_ca="/c.pem"), 5.0, "", "mine"),
        (("nats://e:1",), Secrets(user="eu", password="ep", tls_ca="/c.pem"), 0.25, "hub", "yours"),
        (("nats://o:1", "nats://p:2"), LATER, 3.0, "", "mine"),
        (("nats://e:1",), Secrets(user="eu", password="ep"), 0.25, "", "mine"),
    ]  # fmt: skip


def test_what_cannot_be_used_is_said_and_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    got.clear()
    assert run("--context", "nowhere") == NOT_REACHED
    monkeypatch.setenv("NATS_SOCKS_PROXY", "socks5://h:1")
    assert run() == NOT_REACHED
    first, second = capsys.readouterr().err.splitlines()
    assert "there is no context 'nowhere'" in first and "SOCKS proxy are not supported" in second
    assert not got


@pytest.mark.parametrize("words", [["decommission", "n1"], ["mirror", "S", "--within", "1"], ["object", "add", "b"]])
def test_a_wrong_url_is_no_server_within_seconds(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*words, "-s", "nats://127.0.0.1:1"]) == NOT_REACHED != DONE
    assert "no server could be reached: nats://127.0.0.1:1: " in "".join(capsys.readouterr())
