"""The exam of requests with wrong fields wants a reason, or that the request was done."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from testkit.sim.deployment import Violation
from testkit.sim.session import Msg, Session
from tests.sim.cluster.workloads import refusal_exam
from tests.sim.cluster.workloads.refusal_exam import RefusalExam


class _Says:
    """A session whose requests have this answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    async def request(self, subject: str, payload: bytes, seconds: float) -> Msg:
        return Msg("", "", {}, "", json.dumps(self._answer).encode())


def _answered(answer: dict[str, Any]) -> bool:
    exam = object.__new__(RefusalExam)
    exam.counts = {}
    return asyncio.run(exam.answered(cast(Session, _Says(answer)), "STREAM.NAMES", {"offset": "x"}))


def test_a_request_is_done_or_refused_with_a_reason() -> None:
    assert _answered({"streams": []})
    assert not _answered({"error": {"code": 400, "err_code": 10025, "description": "invalid JSON"}})


@pytest.mark.parametrize("error", [{"code": 400}, {"code": 500, "err_code": 0, "description": "x"}, {"err_code": 7}])
def test_a_refusal_without_a_reason_is_noticed(error: dict[str, Any]) -> None:
    with pytest.raises(Violation, match="without a reason"):
        _answered({"error": error})


def test_a_request_that_nobody_answers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_exam, "PAUSE", 0.0)
    with pytest.raises(Violation, match="answered by nobody"):
        _answered({"error": {"code": 503, "err_code": refusal_exam.NO_LEADER, "description": "no leader"}})
