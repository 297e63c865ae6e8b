"""Histories of Key/Value buckets and object stores, with the requests that client libraries send for them."""

from __future__ import annotations

import base64
from typing import Any

from tests.model.consumer_history import ConsumerWriter
from tests.model.history import SECOND, Headers, Step

KEYS = ("k", "a.b", "a.c", "k-2/x=y")
WATCHERS = ("w1", "w2")


class BucketWriter(ConsumerWriter):
    """Draws histories of one bucket, KV_<name>, and of one object store, OBJ_<name>."""

    def history(self, steps: int) -> list[Step]:
        self.bucket, self.store = f"KV_{self.names[0]}", f"OBJ_{self.names[0]}"
        self.chunks: list[str] = []
        self.watched: set[str] = set()
        found = [self._make_bucket(), self._make_store()]
        return found + [self._step() for _ in range(steps - 2)]

    def _step(self) -> Step:
        kinds = [
            (self._put, 22), (self._put_if, 16), (self._mark, 10), (self._read, 20), (self._read_revision, 6),
            (self._watch, 6), (self._end_watch, 3), (self._status, 4), (self._purge_markers, 3), (self._make_bucket, 2),
            (self._chunk, 8), (self._describe, 6), (self._find_object, 6), (self._remove_chunks, 3),
            (self._delete_message, 1), (self._wait, self.timed),
        ]  # fmt: skip
        return self.rng.choices([one for one, _ in kinds], [weight for _, weight in kinds])[0]()

    # -- Key/Value

    def _name(self) -> str:
        return self.bucket

    def _make_bucket(self) -> Step:
        config = self.configs.get(self.bucket)
        if config is None or self._maybe(0.2):
            config = self._bucket_config()
            self.configs.setdefault(self.bucket, config)
        return Step(f"$JS.API.STREAM.CREATE.{self.bucket}", config)

    def _bucket_config(self) -> dict[str, Any]:
        rng = self.rng
        config: dict[str, Any] = {
            "name": self.bucket, "subjects": [f"$KV.{self.names[0]}.>"],
            "max_msgs_per_subject": rng.choice([1, 1, 3, 64]),
            "max_msgs": -1, "max_bytes": -1, "max_msg_size": -1, "max_consumers": -1, "discard": "new",
            "allow_rollup_hdrs": True, "deny_delete": True, "allow_direct": True, "duplicate_window": 120 * SECOND,
            "storage": rng.choice(self.storages), "num_replicas": self.replicas,
        }  # fmt: skip
        choices: list[dict[str, Any]] = [
            {"max_msg_size": 40}, {"max_bytes": 900}, {"max_age": 3600 * SECOND}, {"description": "words"},
            {"allow_msg_ttl": True, "subject_delete_marker_ttl": 3600 * SECOND}, {"compression": "s2"},
        ]  # fmt: skip
        for _ in range(rng.choice([0, 1, 1, 2])):
            config |= rng.choice(choices)
        return config

    def _key(self) -> str:
        return f"$KV.{self.names[0]}.{self.rng.choice(KEYS)}"

    def _value(self) -> bytes:
        self.last[self.bucket] = self.last.get(self.bucket, 0) + 1
        return self._payload()

    def _put(self) -> Step:
        return Step(self._key(), self._value())

    def _put_if(self) -> Step:
        """A create, or an update of a revision."""
        expected = "0" if self._maybe(0.5) else str(self._seq(self.bucket))
        headers: Headers = (("Nats-Expected-Last-Subject-Sequence", expected),)
        if self._maybe(0.1):
            headers += (("Nats-TTL", self.rng.choice(["1h", "0", "x"])),)
        return Step(self._key(), self._value(), headers)

    def _mark(self) -> Step:
        """A delete or a purge of a key."""
        self.last[self.bucket] = self.last.get(self.bucket, 0) + 1
        headers: Headers = (("KV-Operation", "DEL"),)
        if self._maybe(0.5):
            headers = (("KV-Operation", "PURGE"), ("Nats-Rollup", "sub"))
            headers += (("Nats-TTL", "1h"),) if self._maybe(0.2) else ()
        if self._maybe(0.3):
            headers += (("Nats-Expected-Last-Subject-Sequence", str(self._seq(self.bucket))),)
        return Step(self._key(), b"", headers)

    def _read(self) -> Step:
        key = self._key()
        if self._maybe(0.7):
            return Step(f"$JS.API.DIRECT.GET.{self.bucket}.{key}")
        return Step(f"$JS.API.STREAM.MSG.GET.{self.bucket}", {"last_by_subj": key})

    def _read_revision(self) -> Step:
        kind = self.rng.choice(["DIRECT.GET", "STREAM.MSG.GET"])
        return Step(f"$JS.API.{kind}.{self.bucket}", {"seq": self._seq(self.bucket)})

    def _watch(self) -> Step:
        """An ordered consumer: pushed, without acks, of the last values, of all, or of what is new."""
        name = self.rng.choice(WATCHERS)
        config: dict[str, Any] = {
            "name": name, "ack_policy": "none", "max_deliver": 1, "ack_wait": 22 * 3600 * SECOND, "mem_storage": True,
            "replay_policy": "instant", "num_replicas": 1, "flow_control": True, "idle_heartbeat": 5 * SECOND,
            "filter_subject": self.rng.choice([f"$KV.{self.names[0]}.>", f"$KV.{self.names[0]}.a.*", self._key()]),
            "deliver_policy": self.rng.choice(["last_per_subject", "last_per_subject", "all", "new"]),
            "deliver_subject": f"push.{self.bucket}.{name}", "inactive_threshold": 300 * SECOND,
        }  # fmt: skip
        if self._maybe(0.3):
            config["headers_only"] = True
        self.watched.add(name)
        body = {"stream_name": self.bucket, "config": config, "action": "create"}
        return Step(f"$JS.API.CONSUMER.CREATE.{self.bucket}.{name}.{config['filter_subject']}", body)

    def _end_watch(self) -> Step:
        return Step(f"$JS.API.CONSUMER.DELETE.{self.bucket}.{self.rng.choice(WATCHERS)}")

    def _status(self) -> Step:
        if self._maybe(0.5):
            return Step(f"$JS.API.CONSUMER.INFO.{self.bucket}.{self.rng.choice(WATCHERS)}")
        body = {"subjects_filter": f"$KV.{self.names[0]}.>"} if self._maybe(0.5) else b""
        return Step(f"$JS.API.STREAM.INFO.{self.rng.choice([self.bucket, self.bucket, self.store])}", body)

    def _purge_markers(self) -> Step:
        """A client removes what is older than the marker of a key, or the marker with it."""
        body: dict[str, Any] = {"filter": self._key()}
        if self._maybe(0.5):
            body["keep"] = 1
        return Step(f"$JS.API.STREAM.PURGE.{self.bucket}", body)

    # -- objects

    def _make_store(self) -> Step:
        letter = self.names[0]
        config = {
            "name": self.store, "subjects": [f"$O.{letter}.C.>", f"$O.{letter}.M.>"], "discard": "new",
            "allow_rollup_hdrs": True, "allow_direct": True, "storage": self.rng.choice(self.storages),
            "num_replicas": self.replicas,
        }  # fmt: skip
        return Step(f"$JS.API.STREAM.CREATE.{self.store}", config)

    def _about(self) -> str:
        name = base64.urlsafe_b64encode(self.rng.choice([b"one", b"two"])).decode()
        return f"$O.{self.names[0]}.M.{name}"

    def _chunk(self) -> Step:
        if not self.chunks or self._maybe(0.4):
            self.number += 1
            self.chunks.append(f"$O.{self.names[0]}.C.n{self.number}")
        return Step(self.chunks[-1], self._payload())

    def _describe(self) -> Step:
        return Step(self._about(), b'{"name":"one","chunks":1}', (("Nats-Rollup", "sub"),))

    def _find_object(self) -> Step:
        if self._maybe(0.5):
            return Step(f"$JS.API.DIRECT.GET.{self.store}.{self._about()}")
        return Step(f"$JS.API.STREAM.MSG.GET.{self.store}", {"last_by_subj": self._about()})

    def _remove_chunks(self) -> Step:
        chunk = self.rng.choice(self.chunks) if self.chunks else f"$O.{self.names[0]}.C.none"
        return Step(f"$JS.API.STREAM.PURGE.{self.store}", {"filter": chunk})
