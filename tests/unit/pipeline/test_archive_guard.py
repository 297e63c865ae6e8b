"""The job's side of a retention guard, against a server that answers from a table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from jetcluster.client import servers
from jetcluster.client.stream_state import StreamState
from jetcluster.errors import CONSUMER_NOT_FOUND, by_code
from jetcluster.pipeline import archive_guard
from jetcluster.pipeline.archive import add_arguments, check
from jetcluster.pipeline.archive_guard import ArchiveGuard
from jetcluster.pipeline.result import DataLoss, UsageError


class FakeServer:
    """A stream's consumers; what was asked is in `told`."""

    def __init__(self) -> None:
        self.floors: dict[str, int] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.config: dict[str, Any] = {"deliver_policy": "all", "ack_policy": "explicit"}

    def api(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        _, verb, _, name = subject.split(".")
        self.told.append((verb, body))
        if verb == "CREATE":
            self.floors[name] = 0
        elif name not in self.floors:
            raise by_code(CONSUMER_NOT_FOUND)
        elif verb == "RESET":
            self.floors[name] = body["seq"] - 1
        return {"ack_floor": {"stream_seq": self.floors[name]}, "config": self.config}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    found = FakeServer()

    def ask(options: Any, question: Callable[[Any], Any], **_: Any) -> Any:
        return question(found)

    monkeypatch.setattr(servers, "ask", ask)
    return found


def args_of(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--stream", "S", "--out", "x", *words])


def stream(guard: str = "archive") -> StreamState:
    config = {"retention_guard": {"consumer": guard, "max_bytes": 1}} if guard else {}
    return StreamState("S", "", 1, 10, 10, 0, "", (), True, config)


def test_without_the_argument_nothing_is_asked(server: FakeServer) -> None:
    guard = ArchiveGuard(args_of(), "url")
    guard.begin(stream())
    guard.advance(5, 10)
    assert server.told == []


@pytest.mark.parametrize("other", ["", "else"])
def test_a_stream_that_names_another_guard_or_none_is_refused(server: FakeServer, other: str) -> None:
    with pytest.raises(UsageError, match=r"retention_guard\.consumer=archive"):
        ArchiveGuard(args_of("--guard", "archive"), "url").begin(stream(other))
    assert server.told == []


def test_the_consumer_is_made_once_and_goes_forward_only(server: FakeServer) -> None:
    guard = ArchiveGuard(args_of("--guard", "archive"), "url")
    guard.begin(stream())
    assert [verb for verb, _ in server.told] == ["INFO", "CREATE"]
    config = server.told[1][1]["config"]
    assert config["durable_name"] == "archive" and config["ack_policy"] == "explicit"
    assert config["metadata"] == {archive_guard.ARCHIVE: "url"}
    guard.advance(6, 10)
    guard.advance(6, 10)
    assert server.told[2:] == [("RESET", {"seq": 6})] and guard.floor == 5
    again = ArchiveGuard(args_of("--guard", "archive"), "url")
    again.begin(stream())
    again.advance(4, 10)
    assert again.floor == 5 and server.told[3:] == [("INFO", {})]


@pytest.mark.parametrize(
    "other",
    [{"deliver_policy": "new"}, {"ack_policy": "none"}, {"ack_policy": "all"}, {"filter_subject": "a"},
     {"filter_subjects": ["a", "b"]}],
)  # fmt: skip
def test_a_consumer_that_passes_what_is_not_archived_is_refused(server: FakeServer, other: dict[str, Any]) -> None:
    server.floors["archive"] = 5
    server.config |= other
    guard = ArchiveGuard(args_of("--guard", "archive"), "url")
    with pytest.raises(UsageError, match=f"the consumer has {next(iter(other))}"):
        guard.begin(stream())
    assert server.floors == {"archive": 5} and guard.floor == 0


def test_an_archive_of_more_than_the_stream_has_does_not_move_the_guard(server: FakeServer) -> None:
    guard = ArchiveGuard(args_of("--guard", "archive"), "url")
    guard.begin(stream())
    with pytest.raises(DataLoss, match="was set back"):
        guard.advance(12, 10)
    guard.advance(11, 10)
    assert server.floors == {"archive": 10}


def test_a_guard_of_some_subjects_is_refused() -> None:
    with pytest.raises(UsageError, match="without being archived"):
        check(args_of("--guard", "archive", "--subjects", "a,b"))
