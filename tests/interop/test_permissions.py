"""Permissions: the same users and the same attempts at our server and at nats-server; the answers are the same.

One deviation is on purpose (docs/security/permissions.md): nats-server lets a user who may subscribe to `a.*` have
`a.>`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.interop.oracle import ours, theirs
from tests.unit.server.wire import Frame, Wire, errors, messages

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("closed_wires"), pytest.mark.thorough]

TOKENS = ("a", "b", "c")
LITERALS = [".".join(t) for t in [(x,) for x in TOKENS] + [(x, y) for x in TOKENS for y in TOKENS]] + [
    f"{x}.{y}.{z}" for x in "ab" for y in "ab" for z in "ab"
]
QUEUES = ("q", "r", "v1.x", "v1.y", "v2.x")
QUEUE_ENTRIES = (*QUEUES, "v1.*", "*.x", "v1.>", "*", ">")
USERS = 40


def pattern(rng: random.Random) -> str:
    length = rng.randint(1, 3)
    tokens = [rng.choice((*TOKENS, *TOKENS, "*")) for _ in range(length)]
    if rng.random() < 0.3:
        tokens[-1] = ">"
    return ".".join(tokens)


def entries(rng: random.Random, *, queues: bool) -> list[str]:
    found = []
    for _ in range(rng.randint(1, 4)):
        entry = pattern(rng)
        if queues and rng.random() < 0.4:
            entry += " " + rng.choice(QUEUE_ENTRIES)
        found.append(entry)
    return found


def permissions(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, queues in (("publish", False), ("subscribe", True)):
        lists = {kind: entries(rng, queues=queues) for kind in ("allow", "deny") if rng.random() < 0.6}
        if lists:
            found[name] = lists
    return found


def config(users: list[dict[str, Any]]) -> str:
    """Each user in an account of its own, beside one who may do all. JSON is a subset of the grammar."""
    accounts = {
        f"A{at}": {
            "users": [{"user": f"u{at}", "password": "p", "permissions": user}, {"user": f"f{at}", "password": "p"}]
        }
        for at, user in enumerate(users)
    }
    return f"accounts {json.dumps(accounts)}\n"


async def user(port: int, name: str, **connect: Any) -> Wire:
    wire = await Wire.open(port)
    found = errors(await wire.log_in(user=name, **{"pass": "p"}, **connect))
    assert found == [], found
    return wire


def heard(frames: list[Frame]) -> list[tuple[str, str]]:
    return sorted((frame.sid, frame.subject) for frame in messages(frames))


async def probe(port: int, at: int, subscriptions: list[tuple[str, str]]) -> dict[str, Any]:
    """Every decision about one user."""
    found: dict[str, Any] = {}
    wire, free = await user(port, f"u{at}", echo=False), await user(port, f"f{at}")
    subjects = [*LITERALS, "a.*", "a.>", "*", ">", "a..b", "a."]
    found["published"] = errors(await wire.ask(*(line for s in subjects for line in (f"PUB {s} 0", ""))))
    refused = []
    for number, (subject, queue) in enumerate(subscriptions):
        refused += errors(await wire.ask(f"SUB {subject} {queue + ' ' if queue else ''}{number}"))
        # A queue group gets each message once, whichever of its subscriptions takes it: so each one by itself.
        if queue or number == len(subscriptions) - 1:
            await free.ask(*(line for s in LITERALS for line in (f"PUB {s} 0", "")))
            found[f"{number} {subject} {queue}"] = heard(await wire.settle())
        if queue:
            await wire.ask(f"UNSUB {number}")
    found["refused"] = refused
    await wire.close()
    await free.close()
    return found


def some_subscriptions(rng: random.Random) -> list[tuple[str, str]]:
    chosen = [(pattern(rng), "") for _ in range(25)] + [(pattern(rng), rng.choice(QUEUES)) for _ in range(25)]
    return [*sorted(chosen, key=lambda one: not one[1]), ("a.b.c.d", "")]


def takes(entry: str, subject: str) -> bool:
    """Not the code under test: by a regular expression."""
    text = re.escape(entry).replace(r"\*", "[^.]+").replace(">", ".+")
    return re.fullmatch(text, subject) is not None


WIDE = [*LITERALS, *(f"{one}.{two}" for one in LITERALS for two in LITERALS)]


def leaks(user: dict[str, Any], subject: str, queue: str) -> bool:
    """True when no single entry of the allow list takes all of `subject`: nats-server's deviation."""
    allow = user.get("subscribe", {}).get("allow")
    if allow is None or not subject.endswith(">"):
        return False
    entries = [entry.split()[0] for entry in allow if " " not in entry or queue]
    wanted = [one for one in WIDE if takes(subject, one)]
    return not any(all(takes(entry, one) for one in wanted) for entry in entries)


async def test_random_permissions_decide_as_nats_server_does(tmp_path: Path) -> None:
    rng = random.Random(20261122)
    users = [permissions(rng) for _ in range(USERS)]
    attempts = [some_subscriptions(rng) for _ in users]
    (tmp_path / "server.conf").write_text(config(users))
    decided = 0
    async with ours(tmp_path / "server.conf") as (mine, _), theirs(tmp_path / "server.conf") as (other, _):
        for at, subscriptions in enumerate(attempts):
            subscriptions = [one for one in subscriptions if not leaks(users[at], *one)]
            here, there = await probe(mine, at, subscriptions), await probe(other, at, subscriptions)
            for key in there:
                assert here[key] == there[key], (users[at], key)
            decided += len(subscriptions) + len(LITERALS)
        assert decided > 2000


async def test_a_wider_subscription_than_an_allow_entry_is_refused(tmp_path: Path) -> None:
    """nats-server lets it through. If it stops doing so, this test shows it."""
    (tmp_path / "server.conf").write_text(config([{"subscribe": {"allow": ["a.*", "_INBOX.>"]}}]))
    refusal = ['Permissions Violation for Subscription to "a.>"']
    async with ours(tmp_path / "server.conf") as (mine, _), theirs(tmp_path / "server.conf") as (other, _):
        for port, expected in ((mine, refusal), (other, [])):
            wire = await user(port, "u0")
            assert errors(await wire.ask("SUB a.> 1")) == expected
            assert errors(await wire.ask("SUB a.* 2")) == []
            await wire.close()


RESPONDERS: list[dict[str, Any]] = [
    {"allow_responses": True},
    {"allow_responses": {"max": 2, "expires": "100ms"}},
    {"allow_responses": {"max": 3}, "publish": {"deny": ["r.0"]}},
    {"allow_responses": {"max": -1}, "publish": {"allow": ["x"]}},
    {"allow_responses": {"max": 0}},
    {"allow_responses": {"max_responses": 2, "ttl": "-1s"}, "subscribe": {"allow": ["q"]}},
    {"allow_responses": False},
]


async def responses(port: int, at: int) -> list[list[str]]:
    wire, free = await user(port, f"u{at}"), await user(port, f"f{at}")
    await wire.ask("SUB q 1")
    found = [errors(await wire.ask("PUB r.0 0", "", "PUB x 0", ""))]
    for reply in ("r.0", "r.1"):
        await free.ask(f"PUB q {reply} 0", "")
        for _ in range(4):
            found.append(errors(await wire.ask(f"PUB {reply} 0", "")))
    await free.ask("PUB q r.2 0", "")
    await wire.ask()
    await asyncio.sleep(0.15)
    found.append(errors(await wire.ask("PUB r.2 0", "")))
    await wire.close()
    await free.close()
    return found


async def test_responses_are_open_as_often_and_as_long_as_at_nats_server(tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text(config(RESPONDERS))
    async with ours(tmp_path / "server.conf") as (mine, _), theirs(tmp_path / "server.conf") as (other, _):
        for at, options in enumerate(RESPONDERS):
            assert await responses(mine, at) == await responses(other, at), options


async def after_reload(port: int, reload: Any, file: Path, changed: list[dict[str, Any]]) -> list[Any]:
    """Reloads with other permissions; returns what each connected user is sent, keeps, and may do afterwards."""
    wires = [await user(port, f"u{at}", echo=False) for at in range(len(changed))]
    frees = [await user(port, f"f{at}") for at in range(len(changed))]
    before = file.read_text()
    for wire in wires:
        await wire.ask("SUB a 1", "SUB b.* 2", "SUB c q 3", "SUB > 4")
    file.write_text(config(changed))
    await reload()
    found: list[Any] = []
    for wire, free in zip(wires, frees, strict=True):
        told = sorted(errors(await wire.settle()))
        await free.ask(*(line for s in ("a", "b.a", "b.b", "c", "d") for line in (f"PUB {s} 0", "")))
        found.append((told, heard(await wire.settle()), errors(await wire.ask("PUB a 0", "", "PUB x.y 0", ""))))
        await wire.close()
        await free.close()
    file.write_text(before)
    await reload()
    return found


async def test_permissions_that_change_at_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "server.conf"
    changed: list[dict[str, Any]] = [
        {"subscribe": {"deny": ["a"]}},
        {"subscribe": {"deny": ["b.b", "c q"]}},
        {"subscribe": {"allow": ["b.>", "c q"]}, "publish": {"allow": ["a"]}},
        {"publish": {"deny": ["x.*"]}},
        {},
    ]
    file.write_text(config([{} for _ in changed]))
    async with ours(file) as (mine, mine_again), theirs(file) as (other, other_again):
        here = await after_reload(mine, mine_again, file, changed)
        there = await after_reload(other, other_again, file, changed)
        assert here == there


async def test_default_permissions_are_for_those_who_have_none(tmp_path: Path) -> None:
    blocks = [
        'authorization { default_permissions { publish: { deny: "a" }, subscribe: "b" }, users [ '
        '{ user: u0, password: p }, { user: f0, password: p, permissions { publish: "a" } } ] }',
        'accounts { A { default_permissions { publish: { deny: "a" }, subscribe: "b" }, users [ '
        '{ user: u0, password: p }, { user: f0, password: p, permissions { publish: "a" } } ] } }',
    ]
    for at, block in enumerate(blocks):
        file = tmp_path / f"{at}.conf"
        file.write_text(block)
        async with ours(file) as (mine, _), theirs(file) as (other, _):
            found = []
            for port in (mine, other):
                wires = [await user(port, "u0"), await user(port, "f0")]
                found.append([errors(await w.ask("PUB a 0", "", "PUB b 0", "", "SUB a 1", "SUB b 2")) for w in wires])
            assert found[0] == found[1]
            assert all(found[0])


async def test_the_domain_s_name_of_a_request_needs_the_permission_for_its_own(tmp_path: Path) -> None:
    file = tmp_path / "server.conf"
    denied = ["$JS.API.STREAM.DELETE.>", "$KV.b.>"]
    users = [
        {"publish": {"deny": denied}},
        {"publish": {"allow": ["$JS.hub.API.>"]}},
        {"publish": {"allow": ["$KV.b.k"]}},
    ]
    file.write_text(config(users) + f'jetstream {{ domain: hub, store_dir: "{tmp_path}" }}')
    text = file.read_text().replace('"users"', '"jetstream": true, "users"')
    file.write_text(text)
    subjects = [f"$JS.hub.API.{rest}" for rest in ("STREAM.DELETE.S", "STREAM.INFO.S", "$KV.b.k", "$KV.c.k")]
    async with ours(file) as (mine, _), theirs(file) as (other, _):
        found = []
        for port in (mine, other):
            wires = [await user(port, f"u{at}") for at in range(len(users))]
            found.append([errors(await w.ask(*(line for s in subjects for line in (f"PUB {s} 0", "")))) for w in wires])
        assert found[0] == found[1]
        assert [len(one) for one in found[0]] == [2, 4, 3]
