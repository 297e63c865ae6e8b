"""Archives of format V1 that a server sets aside: of the room that it has for streams."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from testkit.client import Client
from testkit.twins.old_archive import archive, meta, record
from tests.unit.node.rig import running
from tests.unit.node.test_restore_config import restored


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        ("jetstream { store_dir: js, max_file_store: 1MB }", 10023),
        (
            "jetstream { store_dir: js }\nno_auth_user: a\n"
            "accounts { A { jetstream { max_store: 1MB }, users [{user: a, password: a}] } }",
            10002,
        ),
        ("jetstream { store_dir: js, max_file_store: 4MB }", None),
    ],
)
async def test_an_archive_that_the_server_or_the_account_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, err_code: int | None
) -> None:
    monkeypatch.chdir(tmp_path)
    noise = random.Random(5).randbytes(100_000)
    block = b"".join(record(seq, seq, b"s", noise) for seq in range(1, 21))
    data = archive([("meta.inf", meta("S", {"subjects": ["s"]})), ("msgs/1.blk", block)])
    assert len(data) > 2_000_000
    if err_code is not None:
        data = data[:-1000]  # of which nothing would be stored
    chunks = [data[at : at + (128 << 10)] for at in range(0, len(data), 128 << 10)]
    async with (
        running(tmp_path, config) as node,
        await Client.connect(f"nats://127.0.0.1:{node.server.port}") as client,
    ):
        answer = await restored(client, "S", chunks, {"config": {"name": "S", "subjects": ["s"]}, "state": {}})
        assert answer.get("error", {}).get("err_code") == err_code, answer
        if err_code is None:
            assert answer["state"]["messages"] == 20
