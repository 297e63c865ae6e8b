"""Exports and imports: what holds where nothing is written."""

from __future__ import annotations

from jetcluster.config.account_options import DEFAULT_THRESHOLD_SECONDS, SERVICE, STREAM, ExportOptions, ImportOptions


def test_a_response_has_two_minutes_unless_the_export_says_otherwise() -> None:
    assert ExportOptions(SERVICE, "s").patience == DEFAULT_THRESHOLD_SECONDS == 120.0
    assert ExportOptions(SERVICE, "s", response_threshold=0.5).patience == 0.5


def test_an_import_is_known_by_its_own_name_or_that_of_the_export() -> None:
    assert ImportOptions(STREAM, "A", "s.*").here == "s.*"
    assert ImportOptions(STREAM, "A", "s.*", local="mine.*").here == "mine.*"
