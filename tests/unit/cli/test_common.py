"""Parts that several commands share."""

from __future__ import annotations

import pytest

from jetcluster.cli.common import REFUSED, fail, urls_of


def test_urls_of_a_list_with_commas() -> None:
    assert urls_of(" nats://a:1, nats://b:2,,") == ["nats://a:1", "nats://b:2"]


def test_a_failure_is_printed_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("mirror", "there is another stream", REFUSED) == REFUSED
    out, err = capsys.readouterr()
    assert (out, err) == ("", "jetcluster mirror: there is another stream\n")
