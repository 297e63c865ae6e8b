"""Feature flags of a configuration: what is in force, and what the log says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.feature_flags import DEFAULTS, log_lines, merged
from tests.unit.config.files import load


@pytest.mark.parametrize("on", [True, False])
def test_only_the_form_of_acks_can_be_switched(on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = load(f"feature_flags {{ js_ack_fc_v2: {str(on).lower()}, js_raft_delete_range: false, x: true }}")
    assert options.ack_v2 is on
    assert merged(options.feature_flags) == {**DEFAULTS, "js_ack_fc_v2": on}


def test_the_log_says_what_is_configured_and_what_has_no_effect() -> None:
    assert list(log_lines({})) == []
    assert list(log_lines({"js_ack_fc_v2": True, "b": True, "a": False})) == [
        "  Feature flags:",
        "    Configured:    js_ack_fc_v2 (opt-in)",
        "    Unsupported:   a, b",
    ]
    assert list(log_lines({"js_raft_delete_range": False, "js_api_reply_v2": False})) == [
        "  Feature flags:",
        "    Configured:    none",
        "    Fixed:         js_raft_delete_range (true)",
    ]
    assert "js_ack_fc_v2 (disabled)" in "".join(log_lines({"js_ack_fc_v2": False}))
