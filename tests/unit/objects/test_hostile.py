"""Garbage that is published to a bucket: the callback of a subscription must not raise, and a leader must go on."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.objects import request
from tests.unit.objects.rig import Rig, meta
from tests.unit.stream.fake_store import ClientOrigin

VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2,
    1 << 63,
    1 << 70,
    1.5,
    "",
    "o",
    "n",
    "\ud800",
    "a.b",
    "*",
    ">",
    "x" * 3000,
    [],
    [[]],
    {},
    {"a": [{}]},
]
KEYS = ["name", "nonce", "chunks", "size", "bucket", "deleted", "digest", "headers", "options", "description", "zzz"]
SUBJECTS = ["info.o", "info.*", "info.>", "info.a.b", "info.\udcff", "chunks.n", "chunks.a.b", "chunks.>", "delete.o",
            "delete.>", "upload.n", "info", "x", "chunks.\udcff", "delete.\udcff"]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_random_messages(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    for _ in range(60):
        kind = rng.random()
        if kind < 0.3:
            fields = {key: rng.choice(VALUES) for key in rng.sample(KEYS, rng.randrange(len(KEYS)))}
            payload = json.dumps(fields).encode()
        elif kind < 0.6:
            damaged = bytearray(meta(rng.choice("nm"), b"xx", rng.randrange(3)))
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            payload = bytes(damaged)
        else:
            payload = rng.randbytes(rng.randrange(5))
        subject = rng.choice(SUBJECTS).encode("utf-8", "surrogateescape")
        headers = rng.choice(
            [b"", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", b"NATS/1.0\r\n", b"garbage", rng.randbytes(20)]
        )
        rig.bucket.on_message(b"$OBJ.b." + subject, rng.choice([b"", b"r"]), headers, payload, ClientOrigin())
        if rng.random() < 0.5:
            rig.commit()
        if rng.random() < 0.1:
            rig.new_leader(rng.randrange(len(rig.log) + 1))
        rig.tick(rng.choice([0.1, 700]))
        rig.scan()
    assert rig.damage == []
    rig.tick(700)
    rig.tick(700)
    assert rig.put("fine", b"abcdefgh", "fine")["nonce"] == "fine"


@pytest.mark.parametrize("seed", range(20))
def test_random_requests(seed: int) -> None:
    rng = random.Random(seed)
    keys = ["name", "action", "op", "deliver_subject", "offset", "limit"]
    for _ in range(200):
        fields = {key: rng.choice(VALUES) for key in rng.sample(keys, rng.randrange(len(keys)))}
        try:
            found = request.decode(json.dumps(fields).encode(), rng.choice([b"", rng.randbytes(20)]))
        except ApiError:
            continue
        assert found.action in ("list", "info", "get", "delete")
