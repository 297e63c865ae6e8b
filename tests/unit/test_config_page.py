"""docs/configuration.md has the tables of the keys."""

from __future__ import annotations

import re

from scripts import config_page

PAGE, OF_ALL = config_page.PAGE.read_text(), config_page.ALL_KEYS.read_text()
OLD = "its tables are old: python -m scripts.config_page --write"


def test_the_pages_have_the_tables_of_the_keys() -> None:
    assert config_page.problems(PAGE, OF_ALL) == []
    old = PAGE.replace("| honoured | no |", "| inert | |", 1)
    assert config_page.problems(old, OF_ALL) == [f"configuration.md: {OLD}"]
    assert config_page.rendered(old) == PAGE
    assert config_page.problems(PAGE.replace("<!-- keys: compat -->", ""), OF_ALL) == [
        "configuration.md: no table of the block 'compat'"
    ]
    other = OF_ALL.replace("| `port` | `4222` | honoured | no |", "| `port` | `4222` | honoured | yes |")
    assert config_page.problems(PAGE, other) == [f"keys.md: {OLD}"]
    assert config_page.problems(PAGE, OF_ALL.replace("<!-- all keys -->", "")) == ["keys.md: no table of all keys"]


def test_a_reload_changes_a_key_a_part_of_it_or_nothing() -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \|.*\| ([^|]+) \|$", OF_ALL, re.MULTILINE))
    assert rows["max_payload"] == "yes; above 8 MB: refused"
    assert (rows["ping_max"], rows["port"], rows["jetstream"], rows["mqtt"]) == ("yes", "no", "by key", "-")
    assert rows["leafnodes.authorization.users.password"] == "no", "the block around it must not change"
    assert rows["max_conn"] == rows["max_connections"]
