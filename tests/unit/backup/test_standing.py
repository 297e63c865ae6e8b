"""A stream that is there, as a restore takes it: done, to be gone on with, or another one."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.backup.journal import JournalEntry
from jetcluster.backup.restore_options import RestoreOptions
from jetcluster.backup.standing import StreamStanding, standing_of
from jetcluster.backup.verify import StoredStream
from tests.unit.backup.accounts import FakeStream
from tests.unit.backup.site import Site

NOW = "2026-11-01T00:00:00Z"
"""When the stream that is there was made."""
EQUAL, RESTORED, KEPT, OTHER, TORN = StreamStanding


def changed(stream: FakeStream, change: str) -> None:
    if change == "goes on":
        stream.add(3)
    elif change == "acked":
        stream.add(3)
        stream.delete(1, 2)
    elif change == "shorter":
        stream.delete(20)
        stream.last = 19
    elif change == "other":
        message = stream.held[5]
        stream.held[5] = message._replace(payload=b"other")
    elif change == "torn":
        stream.delete(*range(8, 21))
        stream.last = 7
    elif change == "empty":
        stream.delete(*range(1, 21))
        stream.last = 0
    elif change == "empty, other":
        changed(stream, "empty")
        changed(stream, "configured")
    elif change == "begun, used":
        changed(stream, "torn")
        stream.add(1, size=3)
    elif change == "configured":
        stream.config = {**stream.config, "description": "new"}


@pytest.mark.parametrize(
    ("change", "entry", "options", "expected"),
    [
        ("", None, {}, EQUAL), ("", None, {"missing": True}, KEPT), ("goes on", None, {}, OTHER),
        ("goes on", None, {"missing": True}, KEPT), ("configured", None, {}, EQUAL),
        ("configured", None, {"overwrite": True}, OTHER),
        ("configured", JournalEntry("", NOW), {"overwrite": True}, EQUAL),
        # Restored, and compared then.
        ("goes on", JournalEntry("", NOW, True), {"overwrite": True}, RESTORED),
        ("other", JournalEntry("", NOW, True), {}, RESTORED), ("other", JournalEntry("", "then", True), {}, OTHER),
        # Restored, and not compared.
        ("goes on", JournalEntry("", NOW), {}, RESTORED), ("acked", JournalEntry("", NOW), {}, RESTORED),
        ("goes on", JournalEntry("", NOW), {"missing": True}, RESTORED), ("", JournalEntry("", NOW), {}, EQUAL),
        ("other", JournalEntry("", NOW), {}, OTHER), ("shorter", JournalEntry("", NOW), {}, OTHER),
        # Begun, and perhaps made.
        ("goes on", JournalEntry(), {}, RESTORED), ("goes on", JournalEntry(NOW), {"overwrite": True}, OTHER),
        ("goes on", JournalEntry("before"), {"overwrite": True}, RESTORED), ("acked", JournalEntry(), {}, OTHER),
        ("other", JournalEntry(), {}, OTHER), ("other", JournalEntry(), {"missing": True}, KEPT),
        ("", JournalEntry(), {}, EQUAL), ("torn", JournalEntry(), {}, TORN), ("empty", JournalEntry(), {}, TORN),
        ("torn", JournalEntry("before"), {"overwrite": True}, TORN), ("torn", JournalEntry(NOW), {}, OTHER),
        ("torn", None, {}, OTHER), ("torn", JournalEntry("", NOW), {}, OTHER),
        ("empty, other", JournalEntry(), {}, OTHER),
        ("begun, used", JournalEntry(), {}, OTHER),
    ],
)  # fmt: skip
def test_standings(change: str, entry: JournalEntry | None, options: dict[str, Any], expected: StreamStanding) -> None:
    stream = FakeStream("S", NOW)
    stream.add(20)
    site = Site(stream)
    (point,) = site.backup().streams
    changed(stream, change)
    seen = site.account.look("S")
    assert seen is not None
    found = standing_of(
        site.account, StoredStream(site.storage, point), seen, RestoreOptions(**options), entry, point.config, {}  # type: ignore[arg-type]
    )  # fmt: skip
    assert found.standing is expected
    assert found.settled == (entry is not None and entry.done and entry.created == NOW)
