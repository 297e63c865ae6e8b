"""The figure of encryption at rest (bench/scenarios/encryption.py): its table, and a small run."""

from __future__ import annotations

import pytest

from bench.__main__ import main
from bench.scenarios.encryption import CIPHERS, Spent, table


def test_the_table_has_medians_of_each_load_by_cipher() -> None:
    found = {("R1", load, cipher): [Spent(1, 9), Spent(5000, 2), Spent(30, 4)] for load in ("publish", "restart")
             for cipher in CIPHERS}  # fmt: skip
    head, _, publish, restart = table(found).splitlines()
    assert head == "| | no key | chachapoly | aes |"
    assert publish == "| R1, publish |" + " 30/s, 4.0 us |" * 3
    assert restart == "| R1, restart |" + " 30.00 s, 4.00 s |" * 3


@pytest.mark.thorough
def test_each_cipher_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["encryption", "--rounds", "1", "--count", "1000", "--synchronous", "5", "--seconds", "0.2"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    loads = ("publish", "one at a time", "restart", "read")
    assert [row.split(" | ")[0] for row in rows] == [f"| R{nodes}, {load}" for nodes in (1, 3) for load in loads]
    assert all(row.count("us |") == 3 or row.count("s |") == 3 for row in rows)
