from __future__ import annotations

import pytest

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.finding import Finding, Subject


def test_the_subject_in_words() -> None:
    assert Subject().text == ""
    assert Subject("n1").text == "n1"
    assert Subject("n1", "A", "S", "C").text == "A > S > C"


def test_members_that_say_nothing_are_left_out() -> None:
    found = kinds.LAME_DUCK.found(Subject("n1"), "n1 is going away")
    assert set(found.to_dict()) == {"code", "severity", "server", "what", "why", "do", "page"}
    assert found.why == kinds.LAME_DUCK.reason
    with pytest.raises(KeyError):
        Finding.from_dict({"code": "JC112"})
