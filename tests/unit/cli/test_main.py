"""Exit codes and texts of the command line. What follows "Server is ready" is in tests/cluster."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import jetcluster
from jetcluster import native
from jetcluster.cli.main import OVERVIEW, main

ROOT = str(Path(jetcluster.__file__).parents[1])


def python(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=20, cwd=cwd, env=env)


def run(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return python("-m", "jetcluster", *argv, cwd=cwd)


def test_version_is_one_line_that_clients_parse() -> None:
    for argv in (["-v"], ["--version"], ["version"], ["serve", "-v"], ["serve", "version"]):
        done = run(*argv)
        assert done.returncode == 0, argv
        assert done.stderr == f"jetcluster: v{jetcluster.__version__}, {native.described}\n", argv
        assert re.fullmatch(r"nats-server: v(\d+)\.(\d+)\.(\d+)\n", done.stdout), argv


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--bogus"], "flag provided but not defined: -bogus\n"),
        (["-p", "abc"], 'invalid value "abc" for flag -p: parse error\n'),
    ],
)
def test_bad_flags_show_usage_and_exit_with_zero(
    argv: list[str], error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *argv], "jetcluster") == 0
    out, err = capfd.readouterr()
    assert err == error
    assert "Usage: jetcluster serve [options]" in out


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_help_as_nats_server(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([word], "/usr/local/bin/nats-server") == 0
    out, err = capfd.readouterr()
    assert "Usage: nats-server [options]" in out
    assert "--cluster_name" in out
    assert err == ""


@pytest.mark.parametrize("words", [[], ["help"], ["--help"]])
def test_overview(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words, "jetcluster") == 0
    assert "Usage: jetcluster <command>" in capfd.readouterr().out


def test_a_valid_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.conf").write_text("listen: 4333 # a comment\n")
    done = run("serve", "-t", "-c", "c.conf", cwd=tmp_path)
    digest = "5db143167d332f8f2ce2d927529ec772c220a53c3799d2fa938aa93e9d62e00d"  # as nats-server says it
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"nats-server: configuration file c.conf is valid (sha256:{digest})\n"


def test_a_check_tells_what_a_start_would_warn_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.conf").write_text('prof_port: 5\nmax_payload: 9MB\njetstream { sync_interval: "1s" }\n')
    assert main(["-t", "-c", "c.conf"], "nats-server") == 0
    *warnings, verdict = capsys.readouterr().err.splitlines()
    assert verdict.startswith("nats-server: configuration file c.conf is valid (sha256:")
    assert [line.startswith("nats-server: warning: ") for line in warnings] == [True] * 3
    assert ['"prof_port"' in warnings[0], "sync_interval" in warnings[1], "8.00 MB" in warnings[2]] == [True] * 3


def test_a_check_tells_what_keeps_a_server_from_starting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """nats-server's verdict is about the file's form; an operator asks whether it will run."""
    path = tmp_path / "c.conf"
    path.write_text("leafnodes { remotes [ { url: 'nats-leaf://h:7422', account: B } ] }\n")
    assert main(["-t", "-c", str(path)], "nats-server") == 0
    warning, verdict = capsys.readouterr().err.splitlines()
    assert "does not start" in warning and 'cannot find local account "B"' in warning
    assert "is valid" in verdict


@pytest.mark.parametrize(
    ("other", "code", "said"),
    [
        ("port: 4333\ndebug: true\n", 0, "configuration file other.conf can be reloaded"),
        ("port: 4334\n", 3, "config reload not supported for Port: old=4333, new=4334"),
        ("bogus: true\n", 1, 'other.conf:1:0: unknown field "bogus"'),
        (None, 1, "open other.conf: no such file or directory"),
    ],
)
def test_whether_a_file_can_be_reloaded(
    other: str | None, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("c.conf").write_text("port: 4333\n")
    if other is not None:
        Path("other.conf").write_text(other)
    assert main(["-t", "-c", "c.conf", "--test_reload", "other.conf"], "nats-server") == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1] == f"nats-server: {said}"
    assert [("is valid" in line) for line in lines[:-1]] == [True] * (code == 0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("foo: 1\n", 'nats-server: c.conf:1:0: unknown field "foo"\n\n'),
        ("a = \n", "nats-server: Parse error on line 2: 'Expected value but found new line'\n"),
        (
            "ping_interval: 20\n",
            'nats-server: c.conf:1:0: invalid use of field "ping_interval": ping_interval should be converted to a '
            "duration\n\n",
        ),
        (None, "nats-server: open c.conf: no such file or directory\n"),
    ],
)
def test_invalid_configurations_fail_the_check(
    text: str | None, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("c.conf").write_text(text)
    assert main(["-t", "-c", "c.conf"], "nats-server") == 1
    assert capfd.readouterr().err == error


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["foo"], 'nats-server: unrecognized command: "foo"\n'),
        (["-t"], "nats-server: must specify [-c, --config] option to check configuration file syntax\n"),
        (["--test_reload", "f"], "nats-server: --test_reload can only be used together with -t\n"),
        (["-c", "/nope/c.conf"], "nats-server: open /nope/c.conf: no such file or directory\n"),
        (["--routes", "nats://h:1"], "nats-server: solicited routes require cluster capabilities, e.g. --cluster\n"),
        (["-c", "/"], "nats-server: read /: is a directory\n"),
        (["-sl", "ldm=abc"], "nats-server: invalid pid: abc\n"),
        (["-sl", "quit=4194305"], 'nats-server: \nsignal "quit" 4194305: no such process\n'),
        (["-sl", "bogus=4194305"], 'nats-server: unknown signal "bogus"\n'),
    ],
)
def test_what_ends_a_start_with_one(argv: list[str], error: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *argv], "jetcluster") == 1
    assert capfd.readouterr().err == error


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["-p", "{busy}"], 'Error listening on port: {at}, "listen tcp {at}: bind: address already in use"'),
        (["-p", "99999"], 'Error listening on port: 127.0.0.1:99999, "listen tcp: address 99999: invalid port"'),
        (
            ["-p", "-1", "-m", "{busy}"],
            "Can't start monitoring: can't listen to the monitor port: listen tcp {at}: bind: address already in use",
        ),
        (
            ["-p", "-1", "--cluster", "nats://{at}", "--cluster_name", "c"],
            "Error listening on router port: {busy} - listen tcp {at}: bind: address already in use",
        ),
        (["-p", "-1", "-P", "no/x.pid"], "Could not write pidfile: open no/x.pid: no such file or directory"),
        (["-p", "-1", "-js", "-sd", "file"], "Can't start JetStream: storage directory is not a directory"),
        (
            ["-p", "-1", "-js", "-sd", "/proc/no/x"],
            "Can't start JetStream: could not create storage directory - mkdir /proc/no: no such file or directory",
        ),
    ],
)
def test_what_is_fatal_at_start_is_one_line_and_exit_code_one(argv: list[str], error: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = str(taken.getsockname()[1])
        at = f"127.0.0.1:{busy}"
        words = [word.format(busy=busy, at=at) for word in argv]
        done = run("serve", "-a", "127.0.0.1", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[-1].partition("[FTL] ")[2] == error.format(busy=busy, at=at)
    assert sum("[FTL]" in line for line in lines) == 1
    assert "Traceback" not in done.stderr
    assert "Listening for client connections" not in done.stderr


def test_a_log_file_that_cannot_be_opened(tmp_path: Path) -> None:
    done = run("serve", "-l", "no/x.log", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    stamp, _, text = done.stderr.partition(" error ")
    assert text == "opening file: open no/x.log: no such file or directory\n"
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d", stamp)


def test_the_serve_path_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "c.conf").write_text("port: 4222\nauthorization { users: [ {user: a, password: b} ] }\n")
    code = (
        "import sys\n"
        "from jetcluster.cli.main import main\n"
        "from jetcluster.cli.merge import options_from\n"
        "import jetcluster.auth.authenticator, jetcluster.logs\n"
        "options_from({'config': 'c.conf'})\n"
        "heavy = {'typer', 'click', 'rich', 'pydantic', 'aiohttp', 'cryptography', 'bcrypt', 'ssl', 'asyncio'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr


def test_the_overview_names_every_command() -> None:
    import typer

    from jetcluster.cli.commands import app

    listed = [line.split()[0] for line in OVERVIEW.splitlines() if line.startswith("    ")]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert sorted([*commands, "serve", "pipeline"]) == sorted(listed)


def test_the_module_of_the_entry_point_runs_as_well() -> None:
    done = python("-m", "jetcluster.cli.main", "version")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stdout.startswith("nats-server: v")


def test_a_drill_that_is_not_understood_is_no_start(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JETCLUSTER_FAULTS", "journal.write=explode")
    assert main(["serve", "-p", "-1"], "jetcluster") == 1
    assert "JETCLUSTER_FAULTS: unknown action 'explode'" in capfd.readouterr().err


def test_a_signal_ends_in_order_from_the_moment_the_port_is_open() -> None:
    """A client that sees the port may send TERM before the next line runs."""
    script = (
        "import os, signal\n"
        "from jetcluster.cli.main import main\n"
        "from jetcluster.net.early_port import EarlyPort\n"
        "EarlyPort.open = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main(['serve'], 'jetcluster')\n"
    )
    done = python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
