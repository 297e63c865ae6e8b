from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jetcluster import logs
from jetcluster.clock import ManualTime
from jetcluster.config.options import Options

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
    assert not log.is_debug
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
    lines = logs.LineWriter(writer, limit=1000)
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
    lines = logs.LineWriter(writer)
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
