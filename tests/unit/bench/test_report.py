"""The benchmark page out of raw samples: medians, spread, ratios in the right sense, notes, and the README's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import report
from bench.groups import GROUPS
from bench.row import LOWER, Group, Measured, Row, all_rows
from bench.samples import Samples

RATE = Row("rate", "msgs/s", durable=True, note="a note")
DELAY = Row("delay w1", "ms, p50", LOWER)
GROUP = Group("A group", nodes=1, text="Conditions.")


@GROUP.measure(RATE, DELAY)
async def _never(_stand: object) -> Measured:
    raise AssertionError


@pytest.fixture
def samples() -> Samples:
    found = Samples(None, 1.2, "2026-11-29", {"commit": "abc", "machine": "M", "python": "3.11.7"}, [0.1], [0.0])
    for number, factor in ((1, 1.0), (2, 3.0), (3, 2.0)):
        found.add(number, "lazy", "rate", Measured(1000 * factor, 5.0, 0.3))
        found.add(number, "always", "rate", Measured(100 * factor, 9.0, 0.1))
        found.add(number, "jetcluster", "rate", Measured(500 * factor, 2.5 * factor, 0.95))
        found.add(number, "lazy", "delay w1", Measured(0.4 * factor))
        found.add(number, "jetcluster", "delay w1", Measured(0.1 * factor))
    return found


def cells(page: str, row: str) -> list[str]:
    return [
        cell.strip() for cell in next(line for line in page.splitlines() if line.startswith(f"| {row} ")).split("|")
    ]


def test_a_row_has_medians_spread_ratios_and_cpu(samples: Samples) -> None:
    page = report.page(samples, [GROUP])
    assert cells(page, "rate")[1:10] == [
        "rate", "msgs/s", "2,000 (1,000 to 3,000)", "200 (100 to 300)", "1,000 (500 to 1,500)",
        "**0.50**", "5.00", "5 / 9 / 5", "a note; the load client is at its limit (jetcluster 95 % of a core)",
    ]  # fmt: skip
    assert cells(page, "delay w1")[3:9] == ["0.8 (0.4 to 1.2)", "-", "0.2 (0.1 to 0.3)", "4.00", "-", ""]
    assert "Medians of 3 rounds" in page and "**1 of 2 rows at 1.0 or more against lazy.**" in page
    assert "A trial" not in page and "## A group\n\nConditions.\n" in page


def test_one_round_has_no_spread_and_short_loads_are_a_trial(samples: Samples) -> None:
    samples.samples = [one for one in samples.samples if one.round == 1]
    samples.seconds = 0.3
    page = report.page(samples, [GROUP])
    assert cells(page, "rate")[3] == "1,000"
    assert "One round" in page and "A trial" in page


def test_rows_below_the_limit_link_to_their_profile_and_others_do_not(samples: Samples) -> None:
    assert report.below(samples, [GROUP]) == [RATE]
    page = report.page(samples, [GROUP], {"rate", "delay w1"})
    assert cells(page, "rate")[9].endswith("[profile](benchmarks/profiles.md#rate)")
    assert "profile" not in cells(page, "delay w1")[9]


def test_a_failure_is_told(samples: Samples) -> None:
    samples.add(2, "always", "rate", "ClientError: a | b")
    page = report.page(samples, [GROUP])
    assert cells(page, "rate")[4] == "150 (100 to 200)"
    assert "always failed 1 times: ClientError: a / b" in cells(page, "rate")[9]


def test_groups_without_a_sample_are_left_out(samples: Samples) -> None:
    samples.samples = []
    assert "A group" not in report.page(samples, [GROUP])


def test_the_readme_is_quoted_only_in_full() -> None:
    readme = "a\n<!-- bench -->\nold\n<!-- /bench -->\nb\n"
    samples = Samples(None, 1.2, "2026-11-29", {"peer": "nats-server 2.15.3"}, [0.1], [0.0])
    assert report.quote(readme, samples, GROUPS) == readme
    for name in report.QUOTED:
        samples.add(1, "lazy", name, Measured(2000.0))
        samples.add(1, "jetcluster", name, Measured(1.5))
    samples.add(1, "always", "R3 async leader w500", Measured(7.0))
    made = report.quote(readme, samples, GROUPS)
    assert made.startswith("a\n<!-- bench -->\n|") and made.endswith("<!-- /bench -->\nb\n") and "old" not in made
    assert "500 outstanding | 1.5 msgs/s | 2,000 msgs/s | 7 msgs/s |" in made
    assert "median | 1.5 ms | 2,000 ms |  |" in made and "to the next ack | 1.5 s | 2,000 s |" in made


def test_the_readme_of_this_tree_has_a_place_for_the_quote() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert readme.count("<!-- bench -->\n") == readme.count("<!-- /bench -->") == 1


def test_every_row_has_a_name_of_its_own() -> None:
    names = [row.name for row in all_rows(GROUPS)]
    assert len(names) == len(set(names)) > 60
    assert set(report.QUOTED) <= set(names)
    assert all("|" not in name for name in names)
