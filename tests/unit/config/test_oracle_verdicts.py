"""`-t` says what nats-server 2.15.2 says: for each snippet of oracle_cases.py its exit code and its text were recorded
in oracle_verdicts.json. What differs is in oracle_differences.py, with the reason, and nowhere else.
tests/interop/test_config_check.py asks the real server again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from tests.unit.config.oracle_cases import CASES, ENVIRONMENT, FILES
from tests.unit.config.oracle_differences import DIFFERENT, WORDED, without_types

VERDICTS: dict[str, tuple[int, str]] = {
    case: (code, text)
    for case, (code, text) in json.loads(Path(__file__).with_name("oracle_verdicts.json").read_text()).items()
}


@pytest.fixture(autouse=True)
def _among_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def ours(case: str) -> tuple[int, str]:
    """Exit code and text of `-t`."""
    Path("c.conf").write_bytes(case.encode())
    try:
        options, warnings = load_file("c.conf", ENVIRONMENT)
    except ConfigError as error:
        return 1, str(error).rstrip("\n")
    return (
        (1, "\n".join(warnings)) if warnings else (0, f"configuration file c.conf is valid ({options.config_digest})")
    )


def in_any_order(text: str) -> list[str]:
    """The real server goes through maps in another order each time."""
    return sorted(text.split("\n"))


def test_every_verdict_is_the_real_server_s_or_a_difference_with_a_reason() -> None:
    assert VERDICTS.keys() == set(CASES), "record them: python -m tests.interop.test_config_check"
    different, worded = set(), set()
    for case, (code, text) in VERDICTS.items():
        our_code, our_text = ours(case)
        if our_code != code:
            different.add(case)
        elif in_any_order(without_types(our_text)) != in_any_order(without_types(text)):
            worded.add(case)
    assert different - {case for cases in DIFFERENT.values() for case in cases} == set()
    assert worded - {case for cases in WORDED.values() for case in cases} == set()


def test_what_is_refused_only_here_says_so_with_its_place() -> None:
    """Except for texts that say where else: by name, with line and column."""
    for reason, cases in DIFFERENT.items():
        for case in cases:
            code, text = ours(case)
            assert code == 0 or text.startswith("c.conf:1:"), (reason, case, text)
