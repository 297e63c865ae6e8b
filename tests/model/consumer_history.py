"""Histories of consumers: pulls, deliveries to subjects, acks of all kinds, and messages that are removed meanwhile."""

from __future__ import annotations

from typing import Any

from tests.model.history import PIN, SECOND, Step, Writer

WORDS = [b"", b"+ACK", b"+ACK", b"+ACK", b"+OK", b"-NAK", b"-NAK", b"+TERM", b"+TERM why", b"+WPI", b"junk"]
LATER = [b'-NAK {"delay": 1000000000}', b"-NAK 1s"]
NAMES = ("c1", "c2", "c3")
PUSHED = ("p1", "p2")
FAR, PAST = "2099-01-01T00:00:00Z", "2020-01-01T00:00:00Z"


class ConsumerWriter(Writer):
    """Draws histories about consumers."""

    def history(self, steps: int) -> list[Step]:
        self.made: dict[str, set[str]] = {}
        self.policies: dict[tuple[str, str], str] = {}
        found = [self._create(), self._consumer(), self._consumer()]
        return found + [self._step() for _ in range(steps - 3)]

    def _step(self) -> Step:
        kinds = [
            (self._publish, 30), (self._consumer, 7), (self._pull, 30), (self._ack, 30), (self._consumer_info, 14),
            (self._consumers, 3), (self._consumer_delete, 2), (self._pause, 2), (self._info, 3), (self._create, 1),
            (self._wait, 3 * self.timed), (self._purge, 2), (self._delete_message, 2), (self._reset, 2),
            (self._unpin, 1),
        ]  # fmt: skip
        return self.rng.choices([one for one, _ in kinds], [weight for _, weight in kinds])[0]()

    def _config(self, name: str) -> dict[str, Any]:
        config: dict[str, Any] = {"name": name, "subjects": [f"{name.lower()}.>"]}
        config |= {"storage": self.rng.choice(self.storages), "allow_direct": True}
        if self.replicas > 1:
            config["num_replicas"] = self.replicas
        if self._maybe(0.4):
            config["retention"] = self.rng.choice(["workqueue", "workqueue", "interest"])
        if self._maybe(0.2):
            config |= self.rng.choice([{"max_msgs": 6}, {"max_msgs_per_subject": 2}, {"allow_rollup_hdrs": True}])
        if self._maybe(0.15):
            config["republish"] = {"src": f"{name.lower()}.>", "dest": f"again.{name}.>"}
            if self._maybe(0.4):
                config["republish"]["headers_only"] = True
        if self._maybe(0.1):
            config["max_consumers"] = 2
        return config

    def _message(self, name: str) -> tuple[bytes, tuple[tuple[str, str], ...]]:
        headers = (("X-Own", "value"),) if self._maybe(0.3) else ()
        if self.configs.get(name, {}).get("allow_rollup_hdrs") and self._maybe(0.2):
            headers += (("Nats-Rollup", self.rng.choice(["sub", "all"])),)
        return self._payload(), headers

    def _which(self, stream: str) -> str:
        """A consumer that was probably made."""
        known = sorted(self.made.get(stream, ()))
        return self.rng.choice(known if known and self._maybe(0.95) else [*NAMES, *PUSHED, "none"])

    def _consumer(self) -> Step:
        rng, name = self.rng, self._name()
        which = rng.choice(NAMES + PUSHED)
        self.made.setdefault(name, set()).add(which)
        config: dict[str, Any] = {"durable_name": which, "ack_policy": rng.choice(["explicit"] * 4 + ["all", "none"])}
        choices: list[dict[str, Any]] = [
            {"filter_subject": self._filter(name)}, {"filter_subject": self._filter(name)},
            {"filter_subjects": [self._filter(name), self._filter(name)]},
            {"deliver_policy": "last"}, {"deliver_policy": "new"}, {"deliver_policy": "last_per_subject"},
            {"deliver_policy": "last_per_subject", "filter_subject": self._filter(name)},
            {"deliver_policy": "by_start_sequence", "opt_start_seq": self._seq(name)}, {"opt_start_seq": 2},
            {"deliver_policy": "by_start_sequence"},
            {"max_ack_pending": rng.randint(1, 4)}, {"max_ack_pending": rng.randint(1, 4)}, {"max_batch": 3},
            {"headers_only": True}, {"description": "words"},
        ]  # fmt: skip
        pushed = (which in PUSHED) != self._maybe(0.04)
        if pushed:
            config |= self._pushed(name, which)
            choices += [{"idle_heartbeat": 5 * SECOND}, {"idle_heartbeat": 10**8}, {"flow_control": True}]
        elif self._maybe(0.2):
            config |= {
                "priority_groups": ["g"],
                "priority_policy": rng.choice(["overflow", "pinned_client", "prioritized"]),
            }
            choices += [{"priority_groups": []}, {"priority_groups": ["g h"]}, {"priority_policy": "none"}]
        if self.timed:
            choices += [{"ack_wait": SECOND}] * 4 + [{"max_deliver": 2, "ack_wait": SECOND}]
            choices += [{"backoff": [SECOND, 2 * SECOND], "max_deliver": rng.choice([1, 4])}]
        for _ in range(rng.choice([0, 1, 1, 2])):
            config |= rng.choice(choices)
        body: dict[str, Any] = {"stream_name": name if self._maybe(0.97) else "Z", "config": config}
        self.policies[name, which] = config.get("priority_policy", "")
        if self._maybe(0.1):
            body["action"] = rng.choice(["create", "update"])
        kind = rng.choice(["CREATE", "DURABLE.CREATE"])
        if "filter_subject" in config and kind == "CREATE" and self._maybe(0.5):
            filtered = config["filter_subject"] if self._maybe(0.95) else f"{name.lower()}.other"
            return Step(f"$JS.API.CONSUMER.CREATE.{name}.{which}.{filtered}", body)
        if self._maybe(0.05):
            del config["durable_name"]
            kind = "DURABLE.CREATE"
        return Step(f"$JS.API.CONSUMER.{kind}.{name}.{which}", body)

    def _pushed(self, name: str, which: str) -> dict[str, Any]:
        target = f"push.{name}.{which}"
        if self._maybe(0.08):
            target = self.rng.choice([f"push.{name}.*", f"{name.lower()}.1", f"push.{name}.other"])
        if self._maybe(0.4):
            return {"deliver_subject": target, "flow_control": True, "idle_heartbeat": 5 * SECOND}
        return {"deliver_subject": target}

    def _pull(self) -> Step:
        name = self._name()
        which = self._which(name)
        body: Any = {"batch": self.rng.choice([1, 1, 2, 3, 5]), "no_wait": True}
        if self._maybe(0.15):
            body = {"batch": self.rng.randint(1, 3), "expires": 60_000_000}
        policy = self.policies.get((name, which))
        if policy if self._maybe(0.97) else not policy:
            ways = {
                "overflow": [{"min_pending": 2}, {"min_ack_pending": 2}],
                "pinned_client": [{}, {"id": PIN}, {"id": PIN}, {"id": "another"}],
                "prioritized": [{"priority": self.rng.choice([0, 3, 9])}],
            }
            body |= {"group": "g" if self._maybe(0.95) else "x"} | self.rng.choice(ways.get(policy, [{}]))
        return Step(f"$JS.API.CONSUMER.MSG.NEXT.{name}.{which}", body)

    def _ack(self) -> Step:
        name = self._name()
        word = self.rng.choice(WORDS + LATER * self.timed)
        return Step(f"ACK.{name}.{self._which(name)}", word, turn=self.rng.randint(0, 5))

    def _consumer_info(self) -> Step:
        name = self._name()
        body = b"x" if self._maybe(0.02) else b""
        return Step(f"$JS.API.CONSUMER.INFO.{name}.{self._which(name)}", body)

    def _consumers(self) -> Step:
        body = {"offset": self.rng.randint(0, 3)} if self._maybe(0.3) else b""
        return Step(f"$JS.API.CONSUMER.{self.rng.choice(['NAMES', 'LIST'])}.{self._name()}", body)

    def _consumer_delete(self) -> Step:
        name = self._name()
        return Step(f"$JS.API.CONSUMER.DELETE.{name}.{self._which(name)}")

    def _reset(self) -> Step:
        name = self._name()
        body = {"seq": self._seq(name)} if self._maybe(0.5) else b""
        return Step(f"$JS.API.CONSUMER.RESET.{name}.{self._which(name)}", body)

    def _unpin(self) -> Step:
        name = self._name()
        body = {"group": self.rng.choice(["g", "g", "g", "x", ""])}
        return Step(f"$JS.API.CONSUMER.UNPIN.{name}.{self._which(name)}", body)

    def _pause(self) -> Step:
        name = self._name()
        body = {"pause_until": self.rng.choice([FAR, FAR, PAST])} if self._maybe(0.5) else b""
        return Step(f"$JS.API.CONSUMER.PAUSE.{name}.{self._which(name)}", body)
