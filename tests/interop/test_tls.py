"""The table of TLS attempts (tests/unit/server/tls_cases.py) at nats-server: ours is tested for what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testkit.harness import find_server
from tests.unit.server.tls_cases import CASES, VERIFY, Case, Certificates, by_config, outcome
from tests.unit.server.wire import Wire, close_all

from .leaf_pair import OURS, THEIRS, server
from .oracle import theirs

SUITE = "ECDHE-ECDSA-AES128-GCM-SHA256"
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("closed_wires")]


async def test_the_table_is_nats_servers(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    found: dict[str, str] = {}
    for text, cases in by_config(certificates).items():
        (tmp_path / "server.conf").write_text(text)
        async with theirs(tmp_path / "server.conf") as (port, _):
            for case in cases:
                found[case.name] = await outcome(port, case, certificates)
        await close_all()
    assert found == {case.name: case.outcome for case in CASES}


async def shown(kind: str, folder: Path, certificates: Certificates) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The TLS fields of /varz, and those of each connection in /connz."""
    config = certificates.config(Case("", f"{VERIFY}, handshake_first: auto"))
    node = server(kind, folder, kind, config)
    await node.start()
    try:
        cases = [Case("", certificate="dc", first=True, ciphers=SUITE), Case("", certificate="rdn", ciphers=SUITE)]
        for case in cases:
            wire = await Wire.open(node.port, tls=certificates.context(case), first=case.first)
            await wire.log_in()
        varz = await node.monitor("varz")
        connz = await node.monitor("connz?auth=1")
        plain = await node.monitor("connz")
    finally:
        node.kill9()
        await close_all()
    assert not any("tls_peer_certs" in one for one in plain["connections"])
    return only_tls(varz), [only_tls(one) for one in connz["connections"]]


def only_tls(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key.startswith("tls_")}


async def test_monitoring_shows_what_nats_server_shows(tmp_path: Path) -> None:
    if find_server(THEIRS) is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    certificates = Certificates(tmp_path / "certificates")
    here = await shown(OURS, tmp_path, certificates)
    there = await shown(THEIRS, tmp_path, certificates)
    assert here[0] == there[0]
    for one, other in zip(here[1], there[1], strict=True):
        # The rest of the chain is shown from Python 3.13 on, which can be asked for it.
        one["tls_peer_certs"], other["tls_peer_certs"] = one["tls_peer_certs"][:1], other["tls_peer_certs"][:1]
        assert one == other
    assert here[1][1]["tls_cipher_suite"] == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
