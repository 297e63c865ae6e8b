"""Options that contradict each other (config/option_checks.py), in the words of nats-server 2.15."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import Options


def load(folder: Path, text: str) -> Options:
    path = folder / "c.conf"
    path.write_text(text)
    return load_file(str(path), {})[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_payload: 100MB\n", "max_payload (104857600) cannot be higher than max_pending (67108864)"),
        (
            'lame_duck_duration: "40s"\nlame_duck_grace_period: "60s"\n',
            "lame duck grace period (1m0s) should be strictly lower than lame duck duration (40s)",
        ),
        (
            "no_auth_user: x\nauthorization { users: [ {user: a, password: b} ] }\n",
            'no_auth_user: "x" not present as user or nkey in authorization block or account configuration',
        ),
        ("no_auth_user: x\n", 'no_auth_user: "x" present, but users/nkeys are not defined'),
        ("system_account: X\n", "error resolving system account: account missing"),
        ("jetstream: true\ncluster { port: -1 }\n", "jetstream cluster requires `server_name` to be set"),
        (
            "jetstream: true\nserver_name: a\ncluster { port: -1 }\n",
            "jetstream cluster requires `cluster.name` to be set",
        ),
        ('cluster { routes: ["nats://x:1"] }\n', "solicited routes require cluster capabilities, e.g. --cluster"),
        ("port: -1\n", None),
    ],
)
def test_problem_of_values_that_contradict(tmp_path: Path, text: str, problem: str | None) -> None:
    assert problem_of(load(tmp_path, text)) == problem
