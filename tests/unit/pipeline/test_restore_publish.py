"""The stream that a restore publishes to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.client import servers
from jetcluster.errors import ApiError
from jetcluster.pipeline import main, restore
from jetcluster.pipeline.restore_publish import ensure_stream
from jetcluster.pipeline.result import UsageError


@pytest.mark.parametrize("number", [10059, 10039])  # nats-server's, and the specification's
def test_a_stream_that_is_not_there_is_made(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    asked: list[str] = []

    def api(subject: str, *_: Any) -> dict[str, Any]:
        asked.append(subject)
        if "INFO" in subject:
            raise ApiError(404, number, "stream not found")
        return {}

    monkeypatch.setattr(servers, "ask", lambda _options, question: question(SimpleNamespace(api=api)))
    args = main.parser_of("restore", restore).parse_args(["--from", "x", "--create"])  # type: ignore[arg-type]
    plan: Any = SimpleNamespace(target="T", config={})
    ensure_stream(plan, args)
    assert asked == ["STREAM.INFO.T", "STREAM.CREATE.T"]
    args.create = False
    with pytest.raises(UsageError, match="there is no stream T; --create"):
        ensure_stream(plan, args)
