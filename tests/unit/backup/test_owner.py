"""Processes that hold locks, those that have ended and those that are elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

from jetcluster.backup.owner import LockOwner


def gone_owner() -> dict[str, object]:
    """A process of this machine that has ended."""
    code = "import json; from jetcluster.backup.owner import LockOwner; print(json.dumps(LockOwner.here().to_json()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_process_is_gone_when_it_has_ended_and_was_of_this_machine() -> None:
    here = LockOwner.here()
    assert LockOwner.read(json.loads(json.dumps(here.to_json()))) == here and not here.is_gone
    gone = LockOwner.read(gone_owner())
    assert gone is not None and gone.is_gone
    for other in (replace(gone, boot="b"), replace(gone, space="s"), replace(gone, boot=""), replace(gone, started="")):
        assert not other.is_gone
    assert replace(here, started="1").is_gone  # the number is another process's now
    assert str(replace(here, host="h", pid=7)) == "process 7 on h"


def test_a_process_that_was_not_waited_for_has_ended() -> None:
    code = "import json; from jetcluster.backup.owner import LockOwner; print(json.dumps(LockOwner.here().to_json()))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    found = LockOwner.read(json.loads(process.stdout.read()))
    while found is not None and not found.is_gone:
        pass  # it ends after it wrote
    process.wait()
    process.stdout.close()


def test_a_lock_without_its_process() -> None:
    assert LockOwner.read({"token": "x", "owner": "process 1 on n"}) is None
    assert LockOwner.read({**LockOwner.here().to_json(), "pid": "many"}) is None
