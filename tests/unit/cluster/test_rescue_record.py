from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jetcluster.cluster import rescue_record
from jetcluster.cluster.rescue_record import RecordError, RescueRecord
from jetcluster.mesh.identity import RESCUES_NAME
from testkit.twins.log import ListLog

RECORD = RescueRecord("A", "S", 7, 1, 10**18, "ops@host", "n1", ("n1", "n2", "n3"), "log to entry 9", ("all of n2",))


def test_it_is_logged_once_and_by_what_the_journal_says(tmp_path: Path) -> None:
    rescue_record.add(tmp_path, RECORD)
    rescue_record.add(tmp_path, replace(RECORD, stream="T", gid=8))
    assert rescue_record.read(tmp_path) == [RECORD, replace(RECORD, stream="T", gid=8)]
    log = ListLog()
    rescue_record.tell(tmp_path, {7: 1, 8: 0}.__getitem__, log)
    (level, event, values), (_, other, of_other) = log.lines
    assert level == "warning" and event.startswith("a stream was rescued from a lost majority")
    assert values == {
        "stream": "A/S", "number": 1, "at": "2001-09-09T01:46:40Z", "by": "ops@host",
        "voters_before": ["n1", "n2", "n3"], "kept": "log to entry 9", "lost": ["all of n2"],
    }  # fmt: skip
    assert "not carried out: nothing has changed" in other and of_other["stream"] == "A/T"
    rescue_record.tell(tmp_path, {7: 1, 8: 0}.__getitem__, log)
    assert len(log.lines) == 2 and all(record.told for record in rescue_record.read(tmp_path))


def test_there_are_not_ever_more(tmp_path: Path) -> None:
    for number in range(rescue_record.MAX_RECORDS + 3):
        rescue_record.add(tmp_path, replace(RECORD, number=number))
    found = rescue_record.read(tmp_path)
    assert len(found) == rescue_record.MAX_RECORDS and found[-1].number == rescue_record.MAX_RECORDS + 2


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2}', '{"format": 1, "rescues": [{"account": 1}]}'])
def test_a_file_that_is_not_ours(tmp_path: Path, content: str) -> None:
    assert rescue_record.read(tmp_path) == []
    (tmp_path / RESCUES_NAME).write_text(content)
    with pytest.raises(RecordError):
        rescue_record.read(tmp_path)
    with pytest.raises(RecordError):
        rescue_record.add(tmp_path, RECORD)
    log = ListLog()
    rescue_record.tell(tmp_path, lambda gid: 1, log)
    assert [line[:2] for line in log.lines] == [("error", "what was rescued here cannot be told")]
