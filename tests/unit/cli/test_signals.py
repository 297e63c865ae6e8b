from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jetcluster.cli.signals import SignalError, find_servers, is_server_command, send_signal


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m jetcluster serve -p 1", True),
        ("python3.11 -m jetcluster -p 1", True),
        ("/opt/v/bin/python3 /opt/v/bin/jetcluster serve", True),
        ("python -X importtime -m jetcluster serve", True),
        ("python /usr/bin/nats-server -js", True),
        ("python /usr/bin/nats-server", True),
        ("python /usr/bin/nats-server version", False),
        ("python /usr/bin/nats-server decommission n1", False),
        ("python -m jetcluster pipeline run", False),
        ("python -m jetcluster up -n 3", False),
        ("python -m jetcluster serve -sl ldm", False),
        ("python -m jetcluster serve --signal=ldm", False),
        ("/opt/gobin/nats-server -js", False),
        ("vim jetcluster serve", False),
        ("python -m pytest jetcluster", False),
        ("", False),
    ],
)
def test_which_processes_are_servers(command: str, expected: bool) -> None:
    assert is_server_command(command.split()) is expected


def fake_proc(root: Path, commands: dict[int, str]) -> Path:
    for pid, command in commands.items():
        (root / str(pid)).mkdir()
        (root / str(pid) / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    (root / "self").mkdir()
    (root / "99").mkdir()  # ended meanwhile: no cmdline
    return root


def test_search_by_name(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, {20: "python -m jetcluster serve", 3: "python -m jetcluster -p 1", 4: "sleep 9"})
    assert find_servers(proc) == [3, 20]
    with pytest.raises(SignalError, match="multiple nats-server processes running:\n3\n20"):
        send_signal("ldm", proc)


def test_none_found(tmp_path: Path) -> None:
    with pytest.raises(SignalError, match=r"^no nats-server processes running$"):
        send_signal("ldm", fake_proc(tmp_path, {4: "sleep 9"}))


@pytest.mark.parametrize(
    ("request_text", "text"),
    [
        ("quit=abc", "invalid pid: abc"),
        ("quit=/nope", "invalid pid: /nope"),
        ("quit=0", "invalid pid: 0"),
        ("ldm=4194999", '\nsignal "ldm" 4194999: no such process'),
        ("foo=1", 'unknown signal "foo"'),
    ],
)
def test_refusals(request_text: str, text: str) -> None:
    with pytest.raises(SignalError) as caught:
        send_signal(request_text)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "number"),
    [("quit", signal.SIGINT), ("term", signal.SIGTERM), ("stop", signal.SIGKILL), ("reload", signal.SIGHUP),
     ("reopen", signal.SIGUSR1), ("ldm", signal.SIGUSR2)],
)  # fmt: skip
def test_signals_by_pid_and_by_pid_file(name: str, number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):\n"
        "    signal.signal(n, lambda n, f: sys.exit(n))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        path = tmp_path / "s.pid"
        path.write_text(f"{process.pid}\n")
        send_signal(f"{name}={path if name == 'ldm' else process.pid}")
        code_expected = -number if number == signal.SIGKILL else int(number)
        assert process.wait(20) == code_expected


def test_an_expression_means_all_servers_whose_number_begins_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    proc = fake_proc(tmp_path, dict.fromkeys((21, 22, 3), "python -m jetcluster serve") | {23: "sleep 9"})
    send_signal("reload=2*", proc)
    send_signal("ldm=*", proc)
    send_signal("ldm=9*", proc)
    assert sent == [(21, signal.SIGHUP), (22, signal.SIGHUP), *((pid, signal.SIGUSR2) for pid in (3, 21, 22))]


@pytest.mark.parametrize(
    ("content", "error"), [("abc", "invalid pid: abc"), ("0", "invalid pid: 0"), ("-5", "invalid pid: -5")]
)
def test_a_pid_file_that_holds_no_process(content: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "x.pid").write_text(content)
    with pytest.raises(SignalError, match=f"^{error}$"):
        send_signal(f"quit={tmp_path / 'x.pid'}")


@pytest.mark.parametrize("target", ["0", "-5", "abc*", "1=2", "/nope/x.pid"])
def test_what_is_no_process_is_signalled_by_nobody(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill(0)` and `kill(-5)` would hit groups of processes, which nats-server does."""
    monkeypatch.setattr("os.kill", lambda *_: pytest.fail("signalled"))
    with pytest.raises(SignalError, match="invalid"):
        send_signal(f"quit={target}")
