"""Random accounts that share at random, and random clients of theirs: scenarios for test_imports.py."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from tests.interop.import_scenarios import Scenario

TOKENS = "abc"
ACCOUNTS = "ABC"


class Sharing:
    """Random accounts with their exports and imports, made from one seed. Entries that our rules refuse are left
    out. No account imports from itself: both servers leave it to chance then which of two takers of a response comes
    first."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.accounts: dict[str, dict[str, Any]] = {
            name: {
                "users": [{"user": user, "password": "p"} for user in (name.lower(), f"{name.lower()}2")],
                "exports": self._exports(),
                "imports": [],
                "mappings": {},
            }
            for name in ACCOUNTS
        }
        for name in ACCOUNTS:  # one each: nats-server tries several in random order
            source = self._pattern()
            self._try(self.accounts[name]["mappings"], source, self._destination(source))
        for _ in range(8):
            self._try_import(*rng.sample(ACCOUNTS, 2))

    @property
    def config(self) -> str:
        return f"accounts {json.dumps(self.accounts)}\n"

    def _exports(self) -> list[dict[str, str]]:
        found = {(self.rng.choice(["stream", "service"]), self._pattern()) for _ in range(self.rng.randint(1, 3))}
        return [{kind: subject} for kind, subject in sorted(found)]

    def _try(self, block: dict[str, str], key: str, value: str) -> None:
        block[key] = value
        if not self._stands():
            del block[key]

    def _try_import(self, importer: str, exporter: str) -> None:
        rng, imports = self.rng, self.accounts[importer]["imports"]
        ((kind, subject),) = rng.choice(self.accounts[exporter]["exports"]).items()
        wanted = self._narrowed(subject)
        entry: dict[str, Any] = {kind: {"account": exporter, "subject": wanted}}
        if kind == "stream" and rng.random() < 0.4:
            entry["prefix"] = "p"
        else:
            entry["to"] = self._local(wanted)
        imports.append(entry)
        if not self._stands():
            imports.pop()

    def _stands(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "c.conf"
            file.write_text(self.config)
            try:
                load_file(str(file))
            except ConfigError:
                return False
        return True

    # ---- subjects

    def literal(self) -> str:
        tokens = [self.rng.choice(TOKENS) for _ in range(self.rng.randint(1, 3))]
        return ".".join([*self._lead(), *tokens])

    def filter(self) -> str:
        return ".".join([*self._lead(), self._pattern()])

    def _lead(self) -> list[str]:
        """A prefix, at times, under which the importing account knows an import."""
        return self.rng.choice([[], [], [], [], ["p"], ["l"]])

    def _pattern(self) -> str:
        tokens = [self.rng.choice([*TOKENS, *TOKENS, "*"]) for _ in range(self.rng.randint(1, 3))]
        if self.rng.random() < 0.35:
            tokens[-1] = ">"
        return ".".join(tokens)

    def _destination(self, source: str) -> str:
        tokens = [self.rng.choice(TOKENS) for _ in range(self.rng.randint(1, 2))]
        tokens += [f"${at + 1}" for at in range(source.count("*"))]
        return ".".join([*tokens, ">"] if source.endswith(">") else tokens)

    def _narrowed(self, pattern: str) -> str:
        rng, found = self.rng, []
        for token in pattern.split("."):
            if token == "*":
                found.append(rng.choice(["*", "*", *TOKENS]))
            elif token == ">":
                found += rng.choice([[">"], [">"], [rng.choice(TOKENS)], [rng.choice(TOKENS), ">"], ["*"]])
            else:
                found.append(token)
        return ".".join(found)

    def _local(self, subject: str) -> str:
        rng = self.rng
        if rng.random() < 0.3:
            return subject
        order = rng.sample(range(1, subject.count("*") + 1), subject.count("*"))
        tokens = [
            f"${order.pop()}" if token == "*" else token if token == ">" else rng.choice(TOKENS)
            for token in subject.split(".")
        ]
        return ".".join(["l", *tokens] if rng.random() < 0.5 else tokens)


def scenario(seed: int) -> Scenario:
    sharing = Sharing(seed)
    rng = sharing.rng
    users = [name.lower() for name in ACCOUNTS]
    steps = [f"{user}: SUB {sharing.filter()} {sid}" for user in users for sid in range(1, rng.randint(3, 6))]
    steps += [f"{user}: SUB in.{user} 99" for user in users]
    for at in range(25):
        user = rng.choice([*users, *(f"{name}2" for name in users)])
        reply = f" in.{user[0]}" if rng.random() < 0.3 else ""
        steps.append(f"{user}: PUB {sharing.literal()}{reply} | {at}")
        if reply and rng.random() < 0.7:
            steps.append(f"{rng.choice(users)}: ANSWER r{at}")
        if rng.random() < 0.1:
            steps.append(f"{rng.choice(users)}: UNSUB {rng.randint(1, 5)}")
    return Scenario(f"seed {seed}", sharing.config, steps)
