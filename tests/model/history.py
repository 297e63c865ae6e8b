"""Histories: requests of a small alphabet, drawn by a seed, many of them wrong on purpose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from tests.model.stream import Headers

SECOND = 10**9
PIN = "the pin"
"""In a pull request: the newest pin id of its consumer."""


class Moment(NamedTuple):
    """In a request: the time of this message and so many nanoseconds more, which only its server knows."""

    stream: str
    seq: int
    plus: int


@dataclass(slots=True, frozen=True)
class Step:
    """One request; or `wait` seconds of none."""

    subject: str = ""
    body: Any = b""
    """Bytes, or a value that becomes JSON; with `Moment`s in it."""
    headers: Headers = ()
    wait: float = 0.0
    turn: int = 0
    """An ack (subject "ACK.<stream>.<consumer>") is for this delivery, counted from the last one, 0."""
    listen: str = ""
    """Nothing is asked: from now on the player subscribes to this subject of advisories."""
    settles: bool = False
    """It is asked again for a while: what a new configuration removes goes in several pieces."""

    def __str__(self) -> str:
        if self.wait:
            return f"wait {self.wait}"
        if self.listen:
            return f"listen to {self.listen}"
        return f"{self.subject} {dict(self.headers) or ''} {self.body!r}"


def rendered(body: Any, times: dict[Moment, str]) -> bytes:
    """The bytes of a body, whose moments are known by now."""
    return body if isinstance(body, bytes) else json.dumps(_timed(body, times)).encode()


def _timed(value: Any, times: dict[Moment, str]) -> Any:
    if isinstance(value, Moment):
        return times.get(value, value)
    return {key: _timed(one, times) for key, one in value.items()} if isinstance(value, dict) else value


def moments(body: Any) -> list[Moment]:
    """Those of a body, which may be that of a consumer's configuration."""
    if isinstance(body, Moment):
        return [body]
    return [moment for one in body.values() for moment in moments(one)] if isinstance(body, dict) else []


class Writer:
    """Draws a history. It remembers roughly what it did, so that most requests are about something."""

    def __init__(
        self,
        seed: object,
        *,
        timed: bool = True,
        replicas: int = 1,
        names: Sequence[str] = "ABC",
        alone: bool = True,
        storages: Sequence[str] = ("memory", "file"),
    ) -> None:
        """`timed`: with waits, and with limits that a wait of seconds can reach. `names`: of two streams, and of one
        that is never there. `alone`: there are no other streams, so lists are known."""
        self.rng = Random(f"history {seed}")
        self.timed = timed
        self.replicas = replicas
        self.names = names
        self.alone = alone
        self.storages = storages
        self.number = 0
        self.configs: dict[str, dict[str, Any]] = {}
        self.last: dict[str, int] = {}
        """About the last sequence of each stream."""
        self.batch = ["", 0]

    def history(self, steps: int) -> list[Step]:
        found = [self._create()]
        while len(found) < steps:
            found.append(self._step())
        return found

    def _step(self) -> Step:
        kinds = [
            (self._publish, 40), (self._batch, 8), (self._direct, 12), (self._multi, 6), (self._by_subject, 4),
            (self._get, 8), (self._delete_message, 5), (self._purge, 3), (self._info, 7),
            (self._lists, 2 * self.alone),
            (self._create, 3), (self._update, 4), (self._delete, 1), (self._wrong, 2),
            (self._wait, 1 if self.timed else 0),
        ]  # fmt: skip
        return self.rng.choices([one for one, _ in kinds], [weight for _, weight in kinds])[0]()

    # -- words

    def _name(self) -> str:
        known = sorted(self.configs)
        return self.rng.choice(known) if known and self.rng.random() < 0.95 else self.rng.choice(self.names)

    def _subject(self, stream: str) -> str:
        return f"{stream.lower()}.{self.rng.choice(['1', '1', '2', '3', 'x.y'])}"

    def _filter(self, stream: str) -> str:
        letter = stream.lower()
        return self.rng.choice(
            [f"{letter}.>", f"{letter}.*", f"{letter}.1", f"{letter}.2", f"{letter}.x.*", ">", "nobody"]
        )

    def _seq(self, stream: str) -> int:
        last = self.last.get(stream, 0)
        return max(0, self.rng.choice([last, last, last + 1, last - 1, self.rng.randint(0, last + 3)]))

    def _maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    # -- streams

    def _config(self, name: str) -> dict[str, Any]:
        rng, letter = self.rng, name.lower()
        config: dict[str, Any] = {"name": name, "subjects": [f"{letter}.>"], "storage": rng.choice(self.storages)}
        if self.replicas > 1:
            config["num_replicas"] = self.replicas
        if self._maybe(0.8):
            config["allow_direct"] = True
        choices: list[dict[str, Any]] = [
            {"max_msgs": rng.randint(2, 6)},
            {"max_bytes": rng.choice([300, 400])},
            {"max_msgs_per_subject": rng.randint(1, 3)},
            {"discard": "new", "max_msgs": rng.randint(2, 6)},
            {"discard": "new", "max_bytes": rng.choice([300, 400])},
            {"discard": "new", "max_msgs_per_subject": rng.randint(1, 2), "discard_new_per_subject": True},
            {"discard": "new", "max_msgs_per_subject": rng.randint(1, 2), "max_msgs": 4},
            {"discard_new_per_subject": True},
            {"max_msg_size": rng.choice([5, 60])},
            {"allow_rollup_hdrs": True}, {"allow_rollup_hdrs": True},
            {"deny_delete": True}, {"deny_purge": True},
            {"allow_msg_ttl": True}, {"allow_msg_counter": True},
            {"allow_atomic": True}, {"allow_atomic": True}, {"allow_atomic": True},
            {"subject_transform": {"src": f"{letter}.*", "dest": f"{letter}.t.{{{{wildcard(1)}}}}"}},
            {"subjects": [f"{letter}.*"]}, {"subjects": [f"{letter}.1", f"{letter}.2"]},
            {"subjects": [f"{letter}.>", f"{letter}.1"]},
            {"subjects": [f"{self.names[0].lower()}.>", f"{self.names[1].lower()}.1"]},
            {"subjects": [f"{letter}..1"]},
            {"first_seq": rng.choice([1, 7])}, {"description": "words"}, {"metadata": {"key": "value"}},
            {"max_age": rng.choice([3600 * SECOND, 50_000_000, -1])}, {"duplicate_window": 1_000_000},
            {"duplicate_window": 600 * SECOND, "max_age": 3600 * SECOND},
            {"duplicate_window": 7200 * SECOND, "max_age": 3600 * SECOND},
        ]  # fmt: skip
        if not self.timed:
            config["duplicate_window"] = 3600 * SECOND
        else:
            choices += [{"max_age": SECOND}] * 2 + [{"duplicate_window": SECOND}] * 2
        for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])):
            config |= rng.choice(choices)
        return config

    def _create(self) -> Step:
        name = self.rng.choice([self.names[0], *self.names[:2]])
        if name in self.configs and self._maybe(0.4):
            config = self.configs[name]
        else:
            config = self._config(name)
            self.configs.setdefault(name, config)
        return Step(f"$JS.API.STREAM.CREATE.{name}", config)

    def _update(self) -> Step:
        name = self._name()
        config = self.configs.get(name, {"name": name, "num_replicas": self.replicas})
        if self._maybe(0.7):
            config = config | {key: value for key, value in self._config(name).items() if key != "storage"}
        if self._maybe(0.06):
            config |= {"sealed": True}
        if self._maybe(0.7):
            self.configs[name] = config
        return Step(f"$JS.API.STREAM.UPDATE.{name}", config)

    def _delete(self) -> Step:
        name = self._name()
        self.configs.pop(name, None)
        self.last[name] = 0
        return Step(f"$JS.API.STREAM.DELETE.{name}")

    def _purge(self) -> Step:
        name = self._name()
        body: dict[str, Any] = {}
        if self._maybe(0.4):
            body["filter"] = self._filter(name)
        if self._maybe(0.4):
            body["seq"] = self._seq(name)
        elif self._maybe(0.5):
            body["keep"] = self.rng.randint(0, 3)
        if self._maybe(0.05):
            body |= {"seq": 2, "keep": 1}
        return Step(f"$JS.API.STREAM.PURGE.{name}", body)

    def _info(self) -> Step:
        name = self._name()
        body: dict[str, Any] = {"deleted_details": True} if self._maybe(0.6) else {}
        if self._maybe(0.5):
            body["subjects_filter"] = self._filter(name)
        return Step(f"$JS.API.STREAM.INFO.{name}", body)

    def _lists(self) -> Step:
        body: dict[str, Any] = {"offset": self.rng.randint(0, 3)} if self._maybe(0.4) else {}
        if self._maybe(0.4):
            body["subject"] = self._filter(self._name())
        return Step(f"$JS.API.STREAM.{self.rng.choice(['NAMES', 'LIST'])}", body)

    def _wrong(self) -> Step:
        """A malformed request."""
        name = self._name()
        body: Any = self.rng.choice([b"{", b"{}", b'{"seq":', b'{"name":"Z"}', b""])
        kind = self.rng.choice(["CREATE", "UPDATE", "MSG.GET", "MSG.DELETE"])
        return Step(f"$JS.API.STREAM.{kind}.{name}", body)

    def _wait(self) -> Step:
        return Step(wait=self.rng.choice([0.3, 1.2]))

    # -- messages

    def _payload(self) -> bytes:
        self.number += 1
        return b"%d" % self.number + b"." * self.rng.choice([0, 0, 3, 3, 60])

    def _publish(self) -> Step:
        name = self._name()
        self.last[name] = self.last.get(name, 0) + 1
        return Step(self._subject(name), *self._message(name))

    def _message(self, name: str) -> tuple[bytes, Headers]:
        rng, payload = self.rng, self._payload()
        headers: dict[str, str] = {}
        config = self.configs.get(name, {})
        if config.get("allow_msg_counter") and self._maybe(0.85):
            payload = b"" if self._maybe(0.95) else payload
            headers["Nats-Incr"] = rng.choice(["1", "+2", "-7", "0", "99999999999999999999", "x", ""])
        choices = [
            ("X-Own", "value"), ("Nats-Msg-Id", rng.choice("abc")), ("Nats-Msg-Id", rng.choice("abc")),
            ("Nats-Expected-Stream", rng.choice(self.names[:2])), ("Nats-Expected-Last-Sequence", str(self._seq(name))),
            ("Nats-Expected-Last-Subject-Sequence", str(self._seq(name))),
            ("Nats-Expected-Last-Subject-Sequence-Subject", self._filter(name)),
            ("Nats-Expected-Last-Msg-Id", rng.choice("abc")),
            ("Nats-Rollup", rng.choice(["sub", "all", "some"])),
            ("Nats-TTL", rng.choice(["1h", "5", "0", "-1", "500ms", "never", "1s" if self.timed else "9s"])),
            ("Nats-Incr", rng.choice(["1", "x"])),
        ]  # fmt: skip
        if config.get("allow_rollup_hdrs"):
            choices += [("Nats-Rollup", "sub")] * 3
        if config.get("allow_msg_ttl"):
            choices += [("Nats-TTL", "1s" if self.timed else "3600")] * 3
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3])):
            key, value = rng.choice(choices)
            headers.setdefault(key, value)
        if "Nats-Expected-Last-Subject-Sequence-Subject" in headers and self._maybe(0.8):
            headers.setdefault("Nats-Expected-Last-Subject-Sequence", str(self._seq(name)))
        return payload, tuple(headers.items())

    def _batch(self) -> Step:
        """The next message of an atomic batch, or the first one of a new one."""
        name = self._name()
        open_, number = self.batch
        if not open_ or self._maybe(0.08):
            self.number += 1
            open_, number = f"batch{self.number}" if self._maybe(0.95) else "b" * 65, 0
        number += 1 if self._maybe(0.96) else 2
        self.batch = [open_, number]
        payload, own = self._message(name)
        if self._maybe(0.7):
            own = tuple(pair for pair in own if pair[0] == "Nats-Incr")
        headers = (
            *own,
            ("Nats-Batch-Id", str(open_)),
            ("Nats-Batch-Sequence", str(number) if self._maybe(0.97) else "x"),
        )
        if self._maybe(0.4):
            commit = self.rng.choices(["1", "eob", "2"], [6, 3, 1])[0]
            headers += (("Nats-Batch-Commit", commit),)
            self.batch = ["", 0]
            self.last[name] = self.last.get(name, 0) + int(number)
        return Step(self._subject(name), payload, headers)

    # -- reads

    def _moment(self, name: str) -> Moment:
        return Moment(name, self._seq(name), self.rng.choice([0, 0, 1]))

    def _get(self) -> Step:
        name = self._name()
        body = self._lookup(name)
        if self._maybe(0.05):
            body |= {"batch": 2}
        if self._maybe(0.1):
            body |= {"no_hdr": True}
        return Step(f"$JS.API.STREAM.MSG.GET.{name}", body)

    def _lookup(self, name: str) -> dict[str, Any]:
        ways: list[dict[str, Any]] = [
            {"seq": self._seq(name)}, {"last_by_subj": self._filter(name)}, {"next_by_subj": self._filter(name)},
            {"next_by_subj": self._filter(name), "seq": self._seq(name)}, {"start_time": self._moment(name)},
            {"start_time": self._moment(name), "next_by_subj": self._filter(name)},
        ]  # fmt: skip
        found = dict(self.rng.choice(ways))
        if self._maybe(0.08):
            found |= self.rng.choice(ways)
        return found

    def _direct(self) -> Step:
        name = self._name()
        body = self._lookup(name)
        if self._maybe(0.6):
            body["batch"] = self.rng.choice([1, 2, 3, 100])
        if self._maybe(0.2):
            body["max_bytes"] = self.rng.choice([1, 20, 200])
        if self._maybe(0.05):
            body["no_hdr"] = True
        if self._maybe(0.03):
            body = self.rng.choice([{}, {"batch": 2}, {"seq": "x"}, {"seq": -1}, {"start_time": "yesterday"}])
        return Step(f"$JS.API.DIRECT.GET.{name}", body if self._maybe(0.98) else self.rng.choice([b"", b"{"]))

    def _multi(self) -> Step:
        name = self._name()
        body: dict[str, Any] = {"multi_last": [self._filter(name) for _ in range(self.rng.choice([1, 1, 2]))]}
        if self._maybe(0.3):
            body["up_to_seq"] = self._seq(name)
        elif self._maybe(0.3):
            body["up_to_time"] = self._moment(name)
        if self._maybe(0.3):
            body["batch"] = self.rng.choice([1, 2, 100])
        if self._maybe(0.2):
            body["seq"] = self._seq(name)
        if self._maybe(0.05):
            body |= self._lookup(name)
        return Step(f"$JS.API.DIRECT.GET.{name}", body)

    def _by_subject(self) -> Step:
        name = self._name()
        subject = self._subject(name) if self._maybe(0.7) else self._filter(name)
        return Step(f"$JS.API.DIRECT.GET.{name}.{subject}", {"seq": 1} if self._maybe(0.05) else b"")

    def _delete_message(self) -> Step:
        name = self._name()
        body: dict[str, Any] = {"seq": self._seq(name)}
        if self._maybe(0.5):
            body["no_erase"] = True
        return Step(f"$JS.API.STREAM.MSG.DELETE.{name}", body)
