from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jetcluster import faults


@pytest.fixture(autouse=True)
def _clean() -> None:
    faults.disarm()


def test_a_point_does_nothing_until_it_is_armed() -> None:
    faults.point("journal.write")
    with faults.armed("journal.write", faults.fail(errno.EIO)), pytest.raises(OSError, match="Input/output"):
        faults.point("journal.write")
    faults.point("journal.write")


def test_only_known_points_can_be_armed() -> None:
    with pytest.raises(ValueError, match="no fault point"):
        faults.arm("journal.wirte", faults.kill)


def test_hits_are_counted() -> None:
    with faults.armed("raft.apply", faults.hits(faults.fail(errno.EIO), 3, 2)):
        failed = []
        for i in range(1, 7):
            try:
                faults.point("raft.apply")
            except OSError:
                failed.append(i)
    assert failed == [3, 4]


def test_the_environment_arms_points() -> None:
    faults.from_environment("journal.write=enospc@2+1; journal.read=eio;raft.flush=delay:0.0")
    faults.point("journal.write")
    with pytest.raises(OSError) as caught:
        faults.point("journal.write")
    assert caught.value.errno == errno.ENOSPC
    faults.point("journal.write")
    with pytest.raises(OSError) as caught:
        faults.point("journal.read")
    assert caught.value.errno == errno.EIO
    faults.point("raft.flush")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("journal.write", "expected point=action"),
        ("nothing=eio", "no fault point"),
        ("journal.write=explode", "unknown action"),
        ("raft.flush=delay:x", "could not convert"),
        ("raft.flush=hang", "unknown action"),
        ("raft.flush=explode@/tmp", "unknown action"),
    ],
)
def test_a_mistake_in_the_environment_is_refused(value: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        faults.from_environment(value)
    faults.from_environment(None)


def test_a_fault_lasts_while_a_file_exists(tmp_path: Path) -> None:
    file = tmp_path / "trouble"
    faults.from_environment(f"journal.write=eio@{file};journal.create=emfile@{file};journal.synced=hang@{file}")
    faults.point("journal.write")
    faults.point("journal.synced")
    file.touch()
    for name, code in (("journal.write", errno.EIO), ("journal.create", errno.EMFILE)):
        with pytest.raises(OSError) as caught:
            faults.point(name)
        assert caught.value.errno == code
    passed = threading.Event()

    def pass_by() -> None:
        faults.point("journal.synced")
        passed.set()

    thread = threading.Thread(target=pass_by)
    thread.start()
    assert not passed.wait(0.1)
    file.unlink()
    assert passed.wait(5.0)
    thread.join()
    faults.point("journal.write")


def test_kill_ends_the_process_at_once() -> None:
    code = "from jetcluster import faults; faults.from_environment('raft.apply=kill@2')\n"
    code += "faults.point('raft.apply'); print('one', flush=True); faults.point('raft.apply'); print('two')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b"one\n"
