"""Random clients upload, delete and retry while leaders die anywhere: objects are whole, and nothing is left over."""

from __future__ import annotations

import json
import random

import pytest

from jetcluster.store.batch import Batch
from tests.unit.objects.rig import Rig, meta

NAMES = ("cat", "a dog", "Y2F0")


class Uploader:
    """Retries what was not answered, in order and with a Nats-Msg-Id, as a careful client does."""

    def __init__(self, rig: Rig, rng: random.Random, number: int) -> None:
        self.rig = rig
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
        self.rig.publish(f"$OBJ.b.info.{subject}", body, f"begin.{self.nonce}".encode())

    def send(self) -> None:
        if self.begun and self.sent < len(self.parts):
            reply, msg_id = f"{self.nonce}.{self.sent}", f"Nats-Msg-Id: {self.nonce}.{self.sent}"
            self.rig.publish(f"$OBJ.b.chunks.{self.nonce}", self.parts[self.sent], reply.encode(), (msg_id,))
            self.sent += 1

    def listen(self) -> None:
        for answer in self.rig.told(f"begin.{self.nonce}".encode()):
            if "error" in answer:
                self.outcome = answer  # its subject holds another object
            self.begun = "error" not in answer
        while self.outcome is None and (told := self.rig.told(f"{self.nonce}.{self.answered}".encode())):
            self.answered += 1
            if self.answered == len(self.parts) or "error" in told[-1]:
                self.outcome = told[-1]

    def leader_lost(self) -> None:
        self.sent = self.answered


@pytest.mark.parametrize("seed", range(100))
def test_objects_are_whole_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(duplicate_window=10**12)
    uploaders: list[Uploader] = []
    stored: set[str] = set()

    def note(batch: Batch, first_seq: int, ts: int) -> None:
        stored.update(json.loads(p)["nonce"] for s, _, p in batch.messages() if s.startswith(b"$OBJ.b.info."))

    rig.machine.observe(note)
    for _ in range(rng.randrange(30, 120)):
        step = rng.random()
        if step < 0.12 and len(uploaders) < 8:
            uploaders.append(Uploader(rig, rng, len(uploaders)))
            uploaders[-1].begin()
        elif step < 0.6 and uploaders:
            rng.choice(uploaders).send()
        elif step < 0.85:
            rig.commit(rng.randrange(1, 4))
        elif step < 0.9:
            rig.publish(f"$OBJ.b.delete.{rng.choice(['cat', 'YSBkb2c=', 'Y2F0'])}", b"", b"gone")
        elif step < 0.96:
            rig.tick(0.25)
            rig.bucket.scan()
        else:
            rig.time.advance(0)
            rig.new_leader(rng.randrange(len(rig.log) + 1))
            for uploader in uploaders:
                uploader.leader_lost()
        for uploader in uploaders:
            uploader.listen()
    settle(rig, uploaders)
    check(rig, uploaders, stored)


def settle(rig: Rig, uploaders: list[Uploader]) -> None:
    for _ in range(12):
        for uploader in uploaders:
            if not uploader.begun and uploader.outcome is None:
                uploader.begin()
            while uploader.begun and uploader.sent < len(uploader.parts):
                uploader.send()
        rig.commit()
        rig.scan()
        rig.tick()
        for uploader in uploaders:
            uploader.listen()
    assert rig.bucket.uploads is not None
    assert not rig.bucket.uploads.by_nonce, [u.state for u in rig.bucket.uploads.by_nonce.values()]


def check(rig: Rig, uploaders: list[Uploader], stored: set[str]) -> None:
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
    listing = rig.bucket.catalog.listing(0, 0)
    list(listing)
    objects = json.loads(listing.answer)["objects"]
    expected = 0
    for info in objects:
        uploader = by_nonce[info["nonce"]]
        assert (info["name"], info["size"]) == (uploader.name, len(uploader.data))
        chunks = [m.payload for m in rig.store.queries.scan(f"$OBJ.b.chunks.{info['nonce']}".encode(), 1)]
        assert b"".join(chunks) == uploader.data
        expected += len(chunks)
    kinds = [subject.split(".")[0] for subject in rig.stored()]
    assert kinds.count("chunks") == expected, "chunks of no object"
    assert kinds.count("upload") == 0
    assert len(kinds) - expected <= len(NAMES)
