"""`bench balance`: its exit code, and what it says when it does not come to its end."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import pytest

from bench.scenarios import balance
from testkit.harness import HarnessError, eventually

ARGUMENTS = argparse.Namespace(streams=2, pause=0.0)


@pytest.mark.parametrize(
    ("over", "unacked", "failed", "code"), [(0, 0, "", 0), (1, 0, "", 1), (0, 1, "", 1), (0, 0, "six after 3600 s", 2)]
)
def test_the_exit_code_and_the_last_line(
    over: int, unacked: int, failed: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = {"over_1s": over, "unacked": unacked}

    async def run(_args: argparse.Namespace, result: dict[str, Any]) -> None:
        result["three"] = part
        if failed:
            raise HarnessError(failed)

    monkeypatch.setattr(balance, "run", run)
    assert balance.main(ARGUMENTS) == code
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == {"streams": 2, "pause": 0.0, "three": part} | ({"failed": failed} if failed else {})


class FakeClient:
    """Does not ack, or fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def request(self, *_: object) -> None:
        await asyncio.sleep(0.01)
        raise self._error


async def test_messages_that_still_wait_are_counted() -> None:
    publishers = balance.Publishers(FakeClient(TimeoutError()), 3, 0.0)  # type: ignore[arg-type]
    await eventually(lambda: publishers.unacked() == 3, 20.0, "all wait for a second")
    await publishers.stop()


async def test_a_publisher_that_has_ended_fails_the_run() -> None:
    publishers = balance.Publishers(FakeClient(ConnectionError("closed")), 1, 0.0)  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    with pytest.raises(ConnectionError, match="closed"):
        publishers.unacked()
