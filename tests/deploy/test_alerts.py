"""The alert rules: each fires when it has to and not otherwise, and names a page that is there (deploy/prometheus)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

TOP = Path(__file__).resolve().parents[2]
FILE = TOP / "deploy" / "prometheus" / "alerts.yaml"
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
Series = dict[str, str]
CASES: dict[str, tuple[Series, Series]] = {
    "JetclusterServerGone": (
        {
            'jetcluster_peer_seen{instance="a",peer="c"}': "0x120",
            'jetcluster_peer_seen{instance="b",peer="c"}': "0x120",
        },
        {
            'jetcluster_peer_seen{instance="a",peer="c"}': "0x120",
            'jetcluster_peer_seen{instance="b",peer="c"}': "1x120",
        },
    ),
    "JetclusterServersCutOff": (
        {
            'jetcluster_peer_seen{instance="a",peer="c"}': "0x120",
            'jetcluster_peer_seen{instance="b",peer="c"}': "1x120",
        },
        {
            'jetcluster_peer_seen{instance="a",peer="c"}': "1x120",
            'jetcluster_peer_seen{instance="b",peer="c"}': "1x120",
        },
    ),
    "JetclusterServerUnhealthy": ({"gnatsd_healthz_status": "1x120"}, {"gnatsd_healthz_status": "0x120"}),
    "JetclusterServerNotWell": (
        {'jetcluster_node_trouble{aspect="store"}': "1x120"},
        {'jetcluster_node_trouble{aspect="store"}': "0x120"},
    ),
    "JetclusterRestarts": (
        {"jetcluster_start_time_seconds": "100x100 200x2 300x2 400x14"},
        {"jetcluster_start_time_seconds": "100x60 200x60"},
    ),
    "JetclusterLameDuckStays": ({"jetcluster_lame_duck": "1x120"}, {"jetcluster_lame_duck": "0x110 1x9"}),
    "JetclusterDiskFull": ({"jetcluster_disk_full": "1x120"}, {"jetcluster_disk_full": "0x120"}),
    "JetclusterDiskFilling": (
        {"jetstream_server_total_message_bytes": "95x120", "jetstream_server_max_storage": "100x120"},
        {"jetstream_server_total_message_bytes": "85x120", "jetstream_server_max_storage": "100x120"},
    ),
    "JetclusterSlowDisk": (
        {
            'jetcluster_fsync_seconds_bucket{le="0.5"}': "0+1x120",
            'jetcluster_fsync_seconds_bucket{le="1"}': "0+100x120",
            'jetcluster_fsync_seconds_bucket{le="+Inf"}': "0+100x120",
        },
        {
            'jetcluster_fsync_seconds_bucket{le="0.5"}': "0+100x120",
            'jetcluster_fsync_seconds_bucket{le="1"}': "0+100x120",
            'jetcluster_fsync_seconds_bucket{le="+Inf"}': "0+100x120",
        },
    ),
    "JetclusterClockSkew": ({"jetcluster_clock_skew_seconds": "-7x120"}, {"jetcluster_clock_skew_seconds": "0.2x120"}),
    "JetclusterReplicaLags": (
        {"jetcluster_replica_lag_seconds": "61x120"},
        {"jetcluster_replica_lag_seconds": "59x120"},
    ),
    "JetclusterReplicaOutOfService": (
        {
            "jetcluster_replicas_failed": "0x120",
            "jetcluster_replicas_damaged": "0x120",
            "jetcluster_replicas_quarantined": "0x120",
            "jetcluster_replicas_broken": "1x120",
        },
        {f"jetcluster_replicas_{what}": "0x120" for what in ("failed", "damaged", "quarantined", "broken")},
    ),
    "JetclusterReplicasDiffer": (
        {"jetcluster_replicas_undecided": "0x120", "jetcluster_replicas_refusing": "1x120"},
        {"jetcluster_replicas_undecided": "0x120", "jetcluster_replicas_refusing": "0x120"},
    ),
    "JetclusterDamageFound": (
        {"jetcluster_damage_found_total": "0x100 3x20", "jetcluster_data_renewed_seconds": "0x120"},
        {"jetcluster_damage_found_total": "5x120", "jetcluster_data_renewed_seconds": "0x120"},
    ),
    "JetclusterStreamsLost": (
        {'jetcluster_streams_lost{instance="a"}': "1x120", 'jetcluster_streams_lost{instance="b"}': "0x120"},
        {'jetcluster_streams_lost{instance="a"}': "0x119 1"},
    ),
    "JetclusterStreamsAway": (
        {'jetcluster_streams_away{instance="a"}': "2x120", 'jetcluster_streams_away{instance="b"}': "2x120"},
        {'jetcluster_streams_away{instance="a"}': "2x120", 'jetcluster_streams_away{instance="b"}': "0x120"},
    ),
    "JetclusterStreamsUnassigned": (
        {"jetcluster_streams_unassigned": "2x120"},
        {"jetcluster_streams_unassigned": "0x120"},
    ),
    "JetclusterConsumersStuck": (
        {"jetcluster_consumers_stuck": "1x120"},
        {"jetcluster_consumers_stuck": "0x118 1x1"},
    ),
    "JetclusterUpstreamSilent": (
        {"jetcluster_upstream_silent_seconds": "0+60x120"},
        {"jetcluster_upstream_silent_seconds": "1x120"},
    ),
    "JetclusterUpstreamLags": (
        {"jetcluster_upstream_lag_seconds": "400x120", "jetcluster_upstream_silent_seconds": "1x120"},
        {"jetcluster_upstream_lag_seconds": "400x120", "jetcluster_upstream_silent_seconds": "400x120"},
    ),
    "JetclusterConsumerUnacked": (
        {
            f'jetstream_consumer_{name}{{is_consumer_leader="true"}}': "5x120"
            for name in ("num_pending", "num_ack_pending")
        }
        | {'jetstream_consumer_last_ack_seconds{is_consumer_leader="true"}': "0+60x120"},
        {
            f'jetstream_consumer_{name}{{is_consumer_leader="true"}}': "5x120"
            for name in ("num_pending", "num_ack_pending")
        }
        | {'jetstream_consumer_last_ack_seconds{is_consumer_leader="true"}': "3x120"},
    ),
    "JetclusterSyncIntervalsDiffer": (
        {"jetcluster_sync_intervals_differing": "1x120"},
        {"jetcluster_sync_intervals_differing": "0x70 1x50"},
    ),
    "JetclusterMetricsCut": ({"jetcluster_metrics_truncated": "1x120"}, {"jetcluster_metrics_truncated": "0x120"}),
}
"""By alert: series of two hours, a sample a minute, with which it fires at the end; those with which it does not."""


MORE_CASES: dict[str, tuple[Series, Series]] = {
    "JetclusterDamageFound": (  # it began again with the data that it could read, and counts anew
        {"jetcluster_damage_found_total": "0x120", "jetcluster_data_renewed_seconds": "0x100 6000x20"},
        {"jetcluster_damage_found_total": "0x120", "jetcluster_data_renewed_seconds": "600x120"},
    ),
}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    return found


def test_the_rules_are_valid(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", str(FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


def test_each_alert_fires_when_it_has_to(promtool: str, tmp_path: Path) -> None:
    assert set(CASES) == {rule["alert"] for rule in RULES}
    tests = []
    for rule in RULES:
        for number, series in enumerate([*CASES[rule["alert"]], *MORE_CASES.get(rule["alert"], ())]):
            tests.append(
                {
                    "name": f"{rule['alert']} {'quiet' if number % 2 else 'fires'}",
                    "interval": "1m",
                    "input_series": [{"series": name, "values": values} for name, values in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}}) or vector(0)',
                            "eval_time": "2h",
                            "exp_samples": [{"labels": "{}", "value": 0 if number % 2 else 1}],
                        }
                    ],
                }
            )
    file = tmp_path / "alerts.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_queries_of_the_dashboard_are_valid(promtool: str, tmp_path: Path) -> None:
    panels = json.loads((TOP / "deploy" / "grafana" / "jetcluster.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) > 30
    file = tmp_path / "dashboard.yaml"
    for broken in (False, True):
        plain = [expr.replace("$instance", ".*").replace("$__rate_interval", "5m") for expr in queries]
        plain[0] += " +" if broken else ""
        rules = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(plain)]
        file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
        done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == broken, done.stderr


def test_the_first_panel_counts_a_server_that_is_gone(promtool: str, tmp_path: Path) -> None:
    panels = json.loads((TOP / "deploy" / "grafana" / "jetcluster.json").read_text())["panels"]
    (expr,) = [p["targets"][0]["expr"] for p in panels if p["title"] == "Servers that are not healthy, or gone"]
    healthy = {f'gnatsd_healthz_status{{instance="{name}"}}': "0x10" for name in "ab"}
    tests = []
    for seen, shown in ((2, 0), (1, 1)):
        peers = {f'jetcluster_peers_{what}{{instance="{name}"}}': f"{count}x10"
                 for name in "ab" for what, count in (("expected", 2), ("seen", seen))}  # fmt: skip
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in (healthy | peers).items()],
                "promql_expr_test": [
                    {
                        "expr": expr.replace("$instance", ".*"),
                        "eval_time": "5m",
                        "exp_samples": [{"labels": "{}", "value": shown}],
                    }
                ],
            }
        )
    file = tmp_path / "panel.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_names_a_page(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("critical", "warning", "info")
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    text = (TOP / page).read_text()
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line[:1] == "#"
    }
    assert not anchor or anchor in headings, headings
