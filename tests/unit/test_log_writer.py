"""The thread that writes the log: pipes that are full or closed, files that rotate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jetcluster import logs
from jetcluster.config.options import Options
from jetcluster.log_writer import LineWriter
from tests.unit.test_logs import ENV

pytestmark = pytest.mark.usefixtures("restored_logs")


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


def test_a_log_file_that_cannot_be_opened() -> None:
    with pytest.raises(FileNotFoundError):
        logs.configure(Options(log_file="/nope/x.log"))
