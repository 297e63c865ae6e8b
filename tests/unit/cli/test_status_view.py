"""The screen of `status` fits into 80 columns, whatever it shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from jetcluster.cli.cluster_state import NO_ANSWER, UNWELL, ClusterState, ServerReport, StreamGroup
from jetcluster.cli.status_view import MAX_SHOWN, printable, screen, size, table
from tests.unit.cli.fake_cluster import follower


def shown(cluster: ClusterState) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80, highlight=False).print(screen(cluster, 80))
    return out.getvalue().splitlines()


def big() -> ClusterState:
    servers = [
        ServerReport(
            f"jetcluster-{n}", health=UNWELL, reasons=["the disk is full " + "and so on " * 12], meta="leader",
            version="12.34.5", cpu=1234.0, cores=64, memory=123_400_000_000, storage=987_600_000_000,
            max_storage=999_000_000_000, connections=12_345, streams=1234, leaders=1000, slow_consumers=5,
        )
        for n in range(3)
    ]  # fmt: skip
    servers.append(ServerReport("gone", reasons=["no answer"], health=NO_ANSWER, meta="voter"))
    streams = [
        StreamGroup("APP", f"S{n}", "n1", [follower("n2", lag=n)], ["n1"], 10**9, 10**12, reported=True)
        for n in range(30)
    ]
    streams += [StreamGroup("APP", "LOST", holders=["n1"])]
    return ClusterState("production", servers, streams, "jetcluster-0", 5, 3)


def test_nothing_is_wider_than_the_screen_and_no_figure_is_cut() -> None:
    lines = shown(big())
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("jetcl"))
    for figure in ("unwell", "leader", "12.34.5", "1234%", "123 GB", "988 GB 98%", "12,345", "1000/1234"):
        assert figure in row, row
    text = " ".join(lines)
    assert "cluster production: 3 of 4 servers answer" in text and "(5 members, 3 needed)" in text
    assert "- stream APP/LOST: no leader; replicas on n1" in text
    assert f"- and {29 - MAX_SHOWN} more (--json has all)" in text and "healthy:" not in text


def test_a_healthy_cluster_says_so() -> None:
    cluster = ClusterState("c", [ServerReport("n1", health="ok")])
    assert shown(cluster)[-1] == "healthy: every group has a leader, and no replica lags"
    cluster.notes = ["n1 does not list its streams: too large"]
    assert shown(cluster)[-1] == "- n1 does not list its streams: too large"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (31_712_139_264, "31.7 GB"),
        (999_999, "1.0 MB"),
        (123_456, "123 kB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_a_long_name_is_cut_and_a_long_last_column_goes_on() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40)
    console.print(
        table(["name", ">size", "lag"], [["N" * 56, "1.0 kB", "n2 lags by 5; n3 is offline"]], 40, last_wraps=True)
    )
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "name       size lag",
        "NNNNNNN… 1.0 kB n2 lags by 5; n3 is",
        "                offline",
    ]


def test_text_is_cut_before_a_number() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40)
    row = ["consumer", "pull, letters: 7, keys: 20", "1,000,000", "n1"]
    console.print(table(["name", "kind", ">pending", "lag"], [row], 40, last_wraps=True))
    assert out.getvalue().splitlines()[1].split() == ["consumer", "pull,", "letters:", "…", "1,000,000", "n1"]


def test_names_do_not_move_the_cursor_or_change_colors() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(table(["a", ">b"], [["\x1b[2J[red]x[/]", "1"]], 80))
    assert out.getvalue().splitlines()[1] == "?[2J[red]x[/] 1"
    assert printable("a\x07b\n\u202e") == "a?b\n?"
