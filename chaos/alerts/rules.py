"""The alert rules and the scrape configuration of deploy/prometheus, made short enough for a run of minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from testkit.harness import TOP

FOLDER = TOP / "deploy" / "prometheus"
DASHBOARD = TOP / "deploy" / "grafana" / "jetcluster.json"
EVERY = "1s"
"""Interval of scrapes and of evaluations."""
FOR = "3s"
"""`for` of each rule that has one."""
SHORTER: Mapping[str, tuple[tuple[str, str], ...]] = {
    "JetclusterRestarts": (("[30m]", "[45s]"),),
    "JetclusterSlowDisk": (("[5m]", "[10s]"),),
    "JetclusterReplicaLags": (("> 60", "> 5"),),
    "JetclusterDamageFound": (("[1h]", "[45s]"), ("< 3600", "< 45")),
    "JetclusterUpstreamSilent": (("> 30", "> 5"),),
    "JetclusterUpstreamLags": (("> 300", "> 5"),),
    "JetclusterConsumerUnacked": (("< 600", "< 5"),),
}
"""Parts of an expression that take their time in earnest, and what they are in a run. Nothing else is changed."""


class RulesError(Exception):
    """A rule or a job is not what this run knows: its tables have to follow."""


def rules() -> list[dict[str, Any]]:
    """All alert rules, as they are."""
    found = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def shortened(text: str, shorter: Mapping[str, tuple[tuple[str, str], ...]] = SHORTER) -> str:
    """The rules of a file, with short times. Raises RulesError."""
    found = yaml.safe_load(text)
    known = set()
    for rule in (rule for group in found["groups"] for rule in group["rules"]):
        name = rule["alert"]
        known.add(name)
        for old, new in shorter.get(name, ()):
            if rule["expr"].count(old) != 1:
                raise RulesError(f"{name}: {old!r} is not there once: {rule['expr']}")
            rule["expr"] = rule["expr"].replace(old, new)
        if "for" in rule:
            rule["for"] = FOR
    if missing := shorter.keys() - known:
        raise RulesError(f"no such alerts: {', '.join(sorted(missing))}")
    return str(yaml.safe_dump(found, sort_keys=False))


def scraping(text: str, targets: Mapping[str, Sequence[str]]) -> str:
    """The configuration of a file, with these targets (`host:port`) by job, scraped often. Raises RulesError."""
    found = yaml.safe_load(text)
    found["global"] |= {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    jobs = {job["job_name"]: job for job in found["scrape_configs"]}
    if jobs.keys() != targets.keys():
        raise RulesError(f"jobs are {sorted(jobs)}, and there are targets for {sorted(targets)}")
    for name, job in jobs.items():
        for key in [key for key in job if key.endswith("_sd_configs")]:
            del job[key]
        job["static_configs"] = [{"targets": list(targets[name])}]
    return str(yaml.safe_dump(found, sort_keys=False))


def write(folder: Path, targets: Mapping[str, Sequence[str]]) -> Path:
    """Both files, in `folder`; returns the configuration. Raises RulesError."""
    (folder / "alerts.yaml").write_text(shortened((FOLDER / "alerts.yaml").read_text()))
    path = folder / "prometheus.yml"
    path.write_text(scraping((FOLDER / "prometheus.yml").read_text(), targets))
    return path
