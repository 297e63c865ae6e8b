"""Random clients upload, delete and retry while leaders die anywhere: objects are whole, and nothing is left over."""

from __future__ import annotations

import json
import random

import pytest

from jetcluster.store.batch import Batch
from tests.unit.objects.bench import Bench, meta

NAMES = ("cat", "a dog", "Y2F0")


class Uploader:
    """Retries what was not answered, in order and with a Nats-Msg-Id, as a careful client does."""

    def __init__(self, bench: Bench, rng: random.Random, number: int) -> None:
        self.bench = bench
        self.nonce = f"n{number}"
        self.name = rng.choice(NAMES)
        self.data = rng.randbytes(rng.randrange(1, 40))
        self.parts = [self.data[at : at + 7] for at in range(0, len(self.data), 7)]
        self.begun = False
        self.answered = 0
        """Chunks answered, from the first on."""
        self.sent = 0
        self.outcome: dict[str, object] | None = None

    def begin(self) -> None:
        subject = {"cat": "cat", "a dog": "YSBkb2c=", "Y2F0": "Y2F0"}[self.name]
        body = meta(self.nonce, self.data, len(self.parts), self.name)
        self.bench.publish(f"$OBJ.b.info.{subject}", body, f"begin.{self.nonce}".encode())

    def send(self) -> None:
        if self.begun and self.sent < len(self.parts):
            reply, msg_id = f"{self.nonce}.{self.sent}", f"Nats-Msg-Id: {self.nonce}.{self.sent}"
            self.bench.publish(f"$OBJ.b.chunks.{self.nonce}", self.parts[self.sent], reply.encode(), (msg_id,))
            self.sent += 1

    def listen(self) -> None:
        for answer in self.bench.told(f"begin.{self.nonce}".encode()):
            if "error" in answer:
                self.outcome = answer  # its subject holds another object
            self.begun = "error" not in answer
        while self.outcome is None and (told := self.bench.told(f"{self.nonce}.{self.answered}".encode())):
            self.answered += 1
            if self.answered == len(self.parts) or "error" in told[-1]:
                self.outcome = told[-1]

    def leader_lost(self) -> None:
        self.sent = self.answered


@pytest.mark.parametrize("seed", range(100))
def test_objects_are_whole_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(duplicate_window=10**12)
    uploaders: list[Uploader] = []
    stored: set[str] = set()

    def note(batch: Batch, first_seq: int, ts: int) -> None:
        stored.update(json.loads(p)["nonce"] for s, _, p in batch.messages() if s.startswith(b"$OBJ.b.info."))

    bench.machine.observe(note)
    for _ in range(rng.randrange(30, 120)):
        step = rng.random()
        if step < 0.12 and len(uploaders) < 8:
            uploaders.append(Uploader(bench, rng, len(uploaders)))
            uploaders[-1].begin()
        elif step < 0.6 and uploaders:
            rng.choice(uploaders).send()
        elif step < 0.85:
            bench.commit(rng.randrange(1, 4))
        elif step < 0.9:
            bench.publish(f"$OBJ.b.delete.{rng.choice(['cat', 'YSBkb2c=', 'Y2F0'])}", b"", b"gone")
        elif step < 0.96:
            bench.tick(0.25)
            bench.bucket.scan()
        else:
            bench.time.advance(0)
            bench.new_leader(rng.randrange(len(bench.log) + 1))
            for uploader in uploaders:
                uploader.leader_lost()
        for uploader in uploaders:
            uploader.listen()
    settle(bench, uploaders)
    check(bench, uploaders, stored)


def settle(bench: Bench, uploaders: list[Uploader]) -> None:
    for _ in range(12):
        for uploader in uploaders:
            if not uploader.begun and uploader.outcome is None:
                uploader.begin()
            while uploader.begun and uploader.sent < len(uploader.parts):
                uploader.send()
        bench.commit()
        bench.scan()
        bench.tick()
        for uploader in uploaders:
            uploader.listen()
    assert bench.bucket.uploads is not None
    assert not bench.bucket.uploads.by_nonce, [u.state for u in bench.bucket.uploads.by_nonce.values()]


def check(bench: Bench, uploaders: list[Uploader], stored: set[str]) -> None:
    by_nonce = {uploader.nonce: uploader for uploader in uploaders}
    for uploader in uploaders:
        outcome = uploader.outcome
        assert outcome is not None, uploader.nonce
        if "error" in outcome:
            # Refused at the beginning, or finished and replaced before its answer, lost with a leader, was asked for.
            code = outcome["error"]["err_code"]  # type: ignore[index]
            assert (code, uploader.nonce in stored) in ((11005, False), (11002, True)), outcome
        else:
            assert outcome["nonce"] == uploader.nonce
    listing = bench.bucket.catalog.listing(0, 0)
    list(listing)
    objects = json.loads(listing.answer)["objects"]
    expected = 0
    for info in objects:
        uploader = by_nonce[info["nonce"]]
        assert (info["name"], info["size"]) == (uploader.name, len(uploader.data))
        chunks = [m.payload for m in bench.store.queries.scan(f"$OBJ.b.chunks.{info['nonce']}".encode(), 1)]
        assert b"".join(chunks) == uploader.data
        expected += len(chunks)
    kinds = [subject.split(".")[0] for subject in bench.stored()]
    assert kinds.count("chunks") == expected, "chunks of no object"
    assert kinds.count("upload") == 0
    assert len(kinds) - expected <= len(NAMES)
