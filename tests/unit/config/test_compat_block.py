"""The `compat` block: presets, single choices, what is refused, and docs/compatibility.md's table of it."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.options import PRESETS, CompatOptions

PAGE = (Path(__file__).parents[3] / "docs" / "compatibility.md").read_text()


def read(folder: Path, text: str) -> CompatOptions:
    path = folder / "c.conf"
    path.write_text(text)
    options, warnings = load_file(str(path), {})
    assert not warnings and not options.inert
    return options.compat


def test_without_it_stock_clients_decide(tmp_path: Path) -> None:
    stock = CompatOptions("none", "deduplicate", True, "inclusive", False, "absent", False)
    assert read(tmp_path, "port: 1") == read(tmp_path, "compat {}") == stock


def test_all_at_once(tmp_path: Path) -> None:
    assert read(tmp_path, "compat: seeds") == CompatOptions(
        "explicit", "refuse", True, "inclusive", True, "absent", True
    )
    real = CompatOptions("none", "deduplicate", False, "exclusive", False, "refuse", False)
    assert read(tmp_path, 'compat: "nats-server"') == real
    read(tmp_path, "compat: seeds").ack_policy = "none"
    assert PRESETS["seeds"].ack_policy == "explicit", "what is read is the configuration's own"


def test_single_choices(tmp_path: Path) -> None:
    text = "compat { ack_policy: explicit, auto_allow_direct: off, up_to_time: exclusive }"
    assert read(tmp_path, text) == CompatOptions("explicit", "deduplicate", False, "exclusive", False, "absent", False)
    text = "compat { batch_msg_id: refuse, seed_error_codes: on, empty_policy: refuse, duplicate_window_max: true }"
    assert read(tmp_path, text) == CompatOptions("none", "refuse", True, "inclusive", True, "refuse", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("compat: real", 'compat must be "seeds" or "nats-server" or a map, got "real"'),
        ("compat: true", "Expected map or string to define compat, got bool"),
        ("compat { ack_policy: all }", "ack_policy must be 'none' or 'explicit'"),
        ("compat { up_to_time: 1 }", "interface conversion: interface {} is int64, not string"),
        ("compat { auto_allow_direct: maybe }", "interface conversion: interface {} is string, not bool"),
        ("compat { error_codes: true }", 'unknown field "error_codes"'),
    ],
)
def test_anything_else_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert re.fullmatch(rf".*c\.conf:1:\d+: {re.escape(said)}\n", str(refused.value)), str(refused.value)


def test_the_page_lists_every_choice_with_its_values() -> None:
    def shown(value: object) -> str:
        return f"`{value if isinstance(value, str) else 'on' if value else 'off'}`"

    told = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].strip("`") in asdict(CompatOptions()):
            assert len(cells[4]) > 40, line
            told[cells[0].strip("`")] = cells[1:4]
    columns = CompatOptions(), PRESETS["seeds"], PRESETS["nats-server"]
    expected = {
        field.name: [shown(getattr(options, field.name)) for options in columns] for field in fields(CompatOptions)
    }
    assert told == expected
