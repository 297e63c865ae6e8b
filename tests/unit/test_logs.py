from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jetcluster import logs
from jetcluster.config.options import Options
from jetcluster.log_writer import LineWriter
from tests.twins.time import ManualTime

ENV = {**os.environ, "PYTHONPATH": str(Path(logs.__file__).parents[1])}
LINE = re.compile(r"^\[(\d+)\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) \[(DBG|INF|WRN|ERR|FTL|TRC)\] (.*)$")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    logs.configure(Options())
    logging.getLogger().removeHandler(logs._bridge)
    logging.getLogger("jetcluster").setLevel(logging.NOTSET)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Options], Callable[[], list[str]]]:
    """Configures a log file and gives a function that returns the lines written so far."""

    def configure(options: Options) -> Callable[[], list[str]]:
        options.log_file = str(tmp_path / "x.log")
        logs.configure(options)

        def lines() -> list[str]:
            logs.shutdown()
            return (tmp_path / "x.log").read_text().splitlines()

        return lines

    return configure


def test_nobody_forges_a_line(
    written: Callable[[Options], Callable[[], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = written(Options())
    for handler in logging.getLogger().handlers:
        if isinstance(
            handler, type(caplog.handler)
        ):  # would put a half surrogate pair into pytest's report: xdist fails
            monkeypatch.setattr(handler, "emit", lambda record: None)
    said = "x\n[1] 2026/11/22 12:00:00.000000 [ERR] forged\r\x1b[31m\ud800 \u00e9"
    logs.get_logger("server").info(said)
    logging.getLogger("jetcluster.server").warning("user %s is unknown", said)
    first, second = lines()
    escaped = "x\\n[1] 2026/11/22 12:00:00.000000 [ERR] forged\\r\\x1b[31m\\ud800 \u00e9"
    assert first.endswith(f"[INF] {escaped}")
    assert second.endswith(f"[WRN] user {escaped} is unknown")


def test_lines_have_the_format_of_nats_server(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    lines = written(Options(debug=True, trace=True))
    log = logs.get_logger("server")
    log.trace("t")
    log.debug("d")
    log.info("Listening for client connections on 127.0.0.1:4222")
    log.warning("w", count=3, peer="n1", text="two words")
    log.error("e")
    log.fatal("f")
    found = [LINE.match(line) for line in lines()]
    assert all(found), lines()
    assert [match[3] for match in found if match] == ["TRC", "DBG", "INF", "WRN", "ERR", "FTL"]
    assert {match[1] for match in found if match} == {str(os.getpid())}
    assert found[2] is not None
    assert found[2][4] == "Listening for client connections on 127.0.0.1:4222"
    assert found[3] is not None
    assert found[3][4] == "w count=3 peer=n1 text='two words'"


def test_time_comes_from_the_clock_in_utc_or_not_at_all() -> None:
    clock = ManualTime()
    renderer = logs.TextRenderer(7, clock, utc=True)
    assert renderer.line("INF", "x") == "[7] 2023/11/14 22:13:20.000000 [INF] x"
    clock.advance(1.5)
    assert renderer.line("INF", "x") == "[7] 2023/11/14 22:13:21.500000 [INF] x"
    assert logs.TextRenderer(7, clock, logtime=False).line("WRN", "x") == "[7] [WRN] x"


def test_levels(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    lines = written(Options())
    log = logs.get_logger("x")
    log.trace("no")
    log.debug("no")
    log.info("yes")
    assert len(lines()) == 1


def test_values_cannot_forge_a_line(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    lines = written(Options())
    logs.get_logger("x").info("client", name="a\n[1] 2026/01/01 00:00:00.000000 [INF] Server is ready")
    assert len(lines()) == 1


def test_exceptions_are_appended(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    lines = written(Options())
    try:
        int("boom")
    except ValueError:
        logs.get_logger("x").exception("failed", stream="s")
    found = lines()
    assert found[0].endswith("[ERR] failed stream=s")
    assert found[1].startswith("Traceback")
    assert found[-1].startswith("ValueError: invalid literal")


def test_json_lines(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    lines = written(Options(log_format="json", trace=True))
    log = logs.get_logger("raft").bind(group="g1")
    log.info("elected", term=3)
    log.trace("t")
    log.fatal("f")
    found = [json.loads(line) for line in lines()]
    assert [entry["level"] for entry in found] == ["info", "trace", "fatal"]
    assert found[0]["event"] == "elected"
    assert (found[0]["logger"], found[0]["group"], found[0]["term"]) == ("raft", "g1", 3)
    assert re.match(r"\d{4}-\d\d-\d\dT.*Z$", found[0]["time"])


def test_a_logger_made_before_configure_follows_it(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    log = logs.get_logger("early")
    log.debug("nobody sees this")
    lines = written(Options(debug=True))
    log.debug("but this")
    assert [line.rsplit("] ", 1)[1] for line in lines()] == ["but this"]


def test_records_of_the_standard_library_are_taken_in(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    lines = written(Options(debug=True))
    logging.getLogger("jetcluster.mesh").debug("peer %s", "n2")
    logging.getLogger("jetcluster.mesh").info("up")
    logging.getLogger("asyncio").debug("chatter of others is not wanted")
    logging.getLogger("asyncio").warning("slow")
    found = [LINE.match(line) for line in lines()]
    assert [(match[3], match[4]) for match in found if match] == [("DBG", "peer n2"), ("INF", "up"), ("WRN", "slow")]


def test_a_full_pipe_neither_blocks_nor_grows() -> None:
    reader, writer = os.pipe()
    lines = LineWriter(writer, limit=1000)
    start = time.monotonic()
    for number in range(20_000):
        lines.write(f"line {number} " + "x" * 100)
    elapsed = time.monotonic() - start
    assert elapsed < 2.0, "handing over lines waited for the reader"
    assert lines.dropped > 10_000
    # The reader comes back: what was queued arrives in order, then the number of the lost lines.
    received: list[bytes] = []
    drain = threading.Thread(target=lambda: received.extend(iter(lambda: os.read(reader, 65536), b"")))
    drain.start()
    lines.write("after")
    lines.close(5.0)
    os.close(writer)
    drain.join(5.0)
    os.close(reader)
    text = b"".join(received).decode().splitlines()
    numbers = [int(line.split()[1]) for line in text if line.startswith("line ")]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert any("log lines were dropped" in line for line in text)


def test_a_pipe_that_nobody_reads_does_not_keep_the_process() -> None:
    code = (
        "from jetcluster import logs\n"
        "log = logs.get_logger('x')\n"
        "for i in range(3000): log.info('x' * 100, i=i)\n"
        "print('done', flush=True)\n"
        "logs.shutdown(0.1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV
    ) as process:
        assert process.wait(10) == 0  # nobody read stderr
        assert process.stdout is not None
        assert process.stdout.read() == b"done\n"


def test_a_closed_reader_is_survived() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = LineWriter(writer)
    lines.write("into nothing")
    lines.close(2.0)
    os.close(writer)
    assert lines.dropped == 1


def test_reopen_follows_a_rotated_file(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Options(log_file=str(path)))
    log = logs.get_logger("x")
    log.info("one")
    logs._state.writer._idle.wait(2)
    path.rename(tmp_path / "x.log.1")
    logs.reopen()
    logs._state.writer._idle.wait(2)
    log.info("two")
    logs.shutdown()
    assert "one" in (tmp_path / "x.log.1").read_text()
    assert "two" in path.read_text()
    assert "one" not in path.read_text()


def test_trace_alone_shows_no_debug_lines(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    lines = written(Options(trace=True))
    log = logs.get_logger("x")
    log.trace("t")
    log.debug("d")
    logging.getLogger("jetcluster.server").log(logs.TRACE, "from %s", "there")
    assert [line.rsplit("] ", 1)[1] for line in lines()] == ["t", "from there"]


def test_a_file_beyond_its_limit_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("of before\n")
    logs.configure(Options(log_file=str(path), log_size_limit=2000, log_max_num=3))
    log = logs.get_logger("x")
    for number in range(200):
        log.info("x" * 50, number=number)
    logs.shutdown(5.0)
    backups = sorted(entry for entry in tmp_path.iterdir() if entry != path)
    assert len(backups) == 2
    pattern = r"x\.log\.\d{4}\.\d\d\.\d\d\.\d\d\.\d\d\.\d\d\.\d{9}"
    assert all(re.fullmatch(pattern, backup.name) for backup in backups)
    assert all(2000 < backup.stat().st_size < 2200 for backup in backups)
    text = path.read_text()
    assert f'[INF] Rotated log, backup saved as "{backups[-1]}"' in text
    assert 'Purged log file "x.log.' in text
    numbers = re.findall(r"number=(\d+)", "".join(file.read_text() for file in [*backups, path]))
    assert [int(number) for number in numbers] == list(range(int(numbers[0]), 200)), "lines are lost or out of order"
    assert int(numbers[0]) > 0


def test_the_limit_follows_a_reload_and_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    (tmp_path / "x.log.keep").write_text("mine")
    logs.configure(Options(log_file=str(path)))
    logs.get_logger("x").info("x" * 500)
    writer = logs._state.writer
    logs.configure(Options(log_file=str(path), log_size_limit=100, log_max_num=1))
    assert logs._state.writer is writer
    logs.get_logger("x").info("y")
    logs.shutdown(5.0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["x.log", "x.log.keep"]
    assert "y" not in path.read_text().splitlines()


def test_a_folder_that_is_gone_does_not_end_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    logs.configure(Options(log_file=str(folder / "x.log"), log_size_limit=100))
    (folder / "x.log").unlink()
    folder.rmdir()
    for _ in range(10):
        logs.get_logger("x").info("y" * 50)
    logs.shutdown(5.0)
    assert logs.dropped_lines() == 0


def _datagrams(socket_: socket.socket, count: int) -> list[bytes]:
    socket_.settimeout(5.0)
    return [socket_.recv(65536) for _ in range(count)]


def test_remote_syslog_gets_level_and_text() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        logs.configure(Options(remote_syslog=f"udp://127.0.0.1:{server.getsockname()[1]}", debug=True, trace=True))
        log = logs.get_logger("x")
        log.info("hello", n=1)
        log.warning("w")
        log.error("e")
        log.fatal("f")
        log.debug("d")
        log.trace("t")
        ident = f"nats-server[{os.getpid()}]: ".encode()
        expected = [(5, b"hello n=1"), (4, b"w"), (3, b"e"), (2, b"f"), (7, b"d"), (5, b"t")]
        assert _datagrams(server, 6) == [b"<%d>%b%b" % (severity, ident, text) for severity, text in expected]
        assert not logs.reopen()
        logs.shutdown()


def test_syslog_on_a_socket_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "log")
    monkeypatch.setattr("jetcluster.log_syslog.LOCAL_SOCKETS", (str(tmp_path / "none"), path))
    with pytest.raises(OSError, match="Unix syslog delivery error"):
        logs.configure(Options(syslog=True))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        logs.configure(Options(syslog=True))
        logs.get_logger("x").info("hello")
        assert _datagrams(server, 1)[0].startswith(b"<29>nats-server[")  # daemon.notice
        logs.shutdown()


def test_syslog_over_tcp_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.log_syslog.RETRY_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        logs.configure(Options(remote_syslog=f"tcp://127.0.0.1:{listener.getsockname()[1]}"))
        first, _ = listener.accept()
        log = logs.get_logger("x")
        log.info("one")
        assert b"one" in first.recv(1000)
        first.close()
        listener.settimeout(5.0)
        for _ in range(20):  # the first ones go into the closed connection
            log.info("again")
            time.sleep(0.01)
        second, _ = listener.accept()
        assert b"again" in second.recv(1000)
        second.close()
        logs.shutdown()


@pytest.mark.parametrize("url", ["http://h:1", "localhost:514", "udp:///x"])
def test_a_syslog_url_of_another_kind(url: str) -> None:
    with pytest.raises(ValueError, match="error invalid network type"):
        logs.configure(Options(remote_syslog=url))


def test_a_log_file_that_cannot_be_opened() -> None:
    with pytest.raises(FileNotFoundError):
        logs.configure(Options(log_file="/nope/x.log"))


def test_structlog_comes_without_rich() -> None:
    """The budget of a cold start depends on it: rich is 45 of structlog's 60 ms."""
    code = (
        "import sys\n"
        "from jetcluster import logs\n"
        "assert 'structlog' not in sys.modules\n"
        "logs.get_logger('x').info('hello')\n"
        "logs.shutdown()\n"
        "assert 'structlog' in sys.modules\n"
        "assert not [m for m in sys.modules if m.partition('.')[0] in ('rich', 'pygments', 'typer', 'pydantic')]\n"
        "import rich\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, env=ENV)
    assert done.returncode == 0, done.stderr
    assert LINE.match(done.stderr.strip()), done.stderr
