"""The exam of buckets notices mistakes of the object service."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.objects.catalog import Catalog
from jetcluster.objects.metadata import Info, dump
from tests.sim.cluster.exam_rig import examined

pytestmark = [pytest.mark.sim, pytest.mark.thorough]


def _fails(monkeypatch: pytest.MonkeyPatch, part: str) -> str:
    return examined(monkeypatch, "exam-buckets", part).failure


def test_watchers_that_are_told_of_another_object_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Info, "tombstone", lambda info: dump({**info.fields, "deleted": True}))
    assert "exam-buckets, own" in _fails(monkeypatch, "_own")


def test_an_older_form_of_an_object_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = Catalog.forms
    monkeypatch.setattr(Catalog, "forms", lambda catalog, name: forms(catalog, name)[::-1])
    assert "exam-buckets, both" in _fails(monkeypatch, "_both")


def test_a_list_that_begins_too_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Catalog.listing
    monkeypatch.setattr(Catalog, "listing", lambda catalog, offset, limit: listing(catalog, offset + 1, limit))
    assert "a list from 0" in _fails(monkeypatch, "_stock")


def test_fields_of_an_object_that_are_lost_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Info.wire

    def less(info: Info) -> dict[str, Any]:
        found = wire(info)
        found.pop("metadata", None)
        return found

    monkeypatch.setattr(Info, "wire", less)
    assert "exam-buckets, stock" in _fails(monkeypatch, "_stock")
