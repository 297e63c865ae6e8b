"""docs/configuration.md has the tables of the keys."""

from __future__ import annotations

from scripts import config_page

PAGE = config_page.PAGE.read_text()


def test_the_page_has_the_tables_of_the_keys() -> None:
    assert config_page.problems(PAGE) == []
    old = PAGE.replace("| honoured | refused |", "| inert | |", 1)
    assert config_page.problems(old) == ["configuration.md: its tables are old: python -m scripts.config_page --write"]
    assert config_page.rendered(old) == PAGE
    assert config_page.problems(PAGE.replace("<!-- keys: compat -->", "")) == [
        "configuration.md: no table of the block 'compat'"
    ]
