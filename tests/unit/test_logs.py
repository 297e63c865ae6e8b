from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jetcluster import logs
from jetcluster.config.options import Options
from testkit.twins.time import ManualTime

ENV = {**os.environ, "PYTHONPATH": str(Path(logs.__file__).parents[1])}
LINE = re.compile(r"^\[(\d+)\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) \[(DBG|INF|WRN|ERR|FTL|TRC)\] (.*)$")


pytestmark = pytest.mark.usefixtures("restored_logs")


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


def test_trace_alone_shows_no_debug_lines(written: Callable[[Options], Callable[[], list[str]]]) -> None:
    lines = written(Options(trace=True))
    log = logs.get_logger("x")
    log.trace("t")
    log.debug("d")
    logging.getLogger("jetcluster.server").log(logs.TRACE, "from %s", "there")
    assert [line.rsplit("] ", 1)[1] for line in lines()] == ["t", "from there"]


def test_structlog_comes_for_json_and_without_rich() -> None:
    """The budget of a cold start depends on it: rich is 45 of structlog's 60 ms."""
    code = (
        "import sys\n"
        "from jetcluster import logs\n"
        "logs.get_logger('x').info('hello')\n"
        "assert 'structlog' not in sys.modules\n"
        "from types import SimpleNamespace\n"
        "none = dict.fromkeys(('debug', 'trace', 'log_file', 'syslog', 'remote_syslog', 'logtime_utc'))\n"
        "logs.configure(SimpleNamespace(**none, logtime=True, log_format='json'))\n"
        "logs.get_logger('x').info('hello')\n"
        "logs.shutdown()\n"
        "assert 'structlog' in sys.modules\n"
        "assert not [m for m in sys.modules if m.partition('.')[0] in ('rich', 'pygments', 'typer', 'pydantic')]\n"
        "import rich\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, env=ENV)
    assert done.returncode == 0, done.stderr
    text, data = done.stderr.splitlines()
    assert LINE.match(text) and json.loads(data)["event"] == "hello", done.stderr
