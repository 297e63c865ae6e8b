"""Operator mode: our server and nats-server with the same operator, accounts and users give the same answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NATS

from testkit.harness import Node, find_server
from tests.operator_cases import ADMITTED, OTHERWISE, REFUSED, Cases
from tests.signer import JETSTREAM, Account, Key, Operator, User, preload
from tests.unit.server.wire import Wire, errors, until_end

from .leaf_pair import OURS, THEIRS, server

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("closed_wires"), pytest.mark.thorough]

KINDS = (OURS, THEIRS)


@asynccontextmanager
async def running(kind: str, root: Path, config: str) -> AsyncIterator[Node]:
    if find_server(kind) is None:
        pytest.skip(f"{kind} is not on this machine: run `make tools`")
    node = server(kind, root, kind, config)
    await node.start()
    try:
        yield node
    finally:
        node.kill9()


@pytest.mark.parametrize("kind", KINDS)
async def test_who_may_come(kind: str, tmp_path: Path) -> None:
    cases = Cases()
    expected: dict[str, list[str]] = {}
    found: dict[str, list[str]] = {}
    async with running(kind, tmp_path, cases.config) as node:
        for name, case in {**ADMITTED, **REFUSED, **{name: case for name, (case, _) in OTHERWISE.items()}}.items():
            wire = await Wire.open(node.port)
            assert wire.info["auth_required"] is True
            nonce = wire.info["nonce"].encode()
            found[name] = errors(await wire.log_in(**case(cases, nonce)))
            if name in OTHERWISE and not wire.over:
                found[name] += await until_end(wire)  # nats-server may say it behind the PONG
            assert wire.over is (name not in ADMITTED), name
            refusal = OTHERWISE[name][1] if name in OTHERWISE else "Authorization Violation"
            expected[name] = [] if name in ADMITTED else [refusal]
    assert found == expected


async def log_in(node: Node, user: User) -> Wire:
    wire = await Wire.open(node.port)
    assert errors(await wire.log_in(**user.connect(wire.info["nonce"].encode()))) == []
    return wire


async def connect(node: Node, user: User) -> NATS:
    return await nats.connect(node.url, **user.options)


async def ask(client: NATS, subject: str, body: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await client.request(subject, body.encode(), timeout=5)).data)
    found.pop("server", None)
    return found


@pytest.mark.parametrize("kind", KINDS)
async def test_connections_that_end(kind: str, tmp_path: Path) -> None:
    """At the end of a user's or an account's time, and when new claims of the account do not have them any more."""
    operator, now = Operator(), int(time.time())
    system, account, short = operator.account("SYS"), operator.account("A"), operator.account("short")
    scoped_key, other_key = Key("account"), Key("account")
    account.claims = {"signing_keys": [other_key.public, {"kind": "user_scope", "key": scoped_key.public}]}
    short.fields = {"exp": now + 3}
    config = f'operator: "{operator.jwt}"\nsystem_account: {system.public}\n{preload(system, account, short)}'
    users = {
        "expires": account.user(fields={"exp": now + 3}),
        "account expires": short.user(),
        "revoked": account.user(fields={"iat": now - 10}),
        "bearer": account.user(bearer_token=True, fields={"iat": now}),
        "signer gone": account.user(signer=other_key, fields={"iat": now}),
        "scoped": account.scoped("U", scoped_key, fields={"iat": now}),
        "newest": account.user(fields={"iat": now}),
    }
    async with running(kind, tmp_path, config) as node:
        wires = {name: await log_in(node, user) for name, user in users.items()}
        await asyncio.sleep(max(now + 2 - time.time(), 0))
        told = {name: await until_end(wires[name]) for name in ("expires", "account expires")}
        at_system = await connect(node, system.user())
        account.claims = {
            "signing_keys": [{"kind": "user_scope", "key": scoped_key.public}],
            "revocations": {users["revoked"].key.public: now - 1},
        }
        account.limits |= {"disallow_bearer": True, "conn": 5}
        update = f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.UPDATE"
        one_more = await log_in(node, account.user(fields={"iat": now}))
        assert await ask(at_system, update, account.jwt) == {
            "data": {"account": account.public, "code": 200, "message": "jwt updated"}
        }
        for name in ("revoked", "bearer", "signer gone"):
            told[name] = await until_end(wires[name])
        told["one more"] = await until_end(one_more)
        for name in ("newest", "scoped"):
            assert errors(await wires[name].ask()) == []
        await at_system.close()
    assert told == {
        "expires": ["User Authentication Expired"],
        "account expires": ["Account Authentication Expired"],
        "revoked": ["User Authentication Revoked"],
        "bearer": ["Authorization Violation"],
        "signer gone": [],
        "one more": ["maximum account active connections exceeded"],
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_updates_of_the_memory_resolver(kind: str, tmp_path: Path) -> None:
    operator, stranger = Operator(), Operator()
    system, account, unknown = operator.account("SYS"), operator.account("A"), operator.account("B")
    config = f'operator: "{operator.jwt}"\nsystem_account: {system.public}\n{preload(system, account)}'
    async with running(kind, tmp_path, config) as node:
        at_system, client = await connect(node, system.user()), await connect(node, account.user())
        subject = f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.UPDATE"
        other = f"$SYS.REQ.ACCOUNT.{unknown.public}.CLAIMS.UPDATE"
        foreign = Account(stranger.key, "A", {})
        foreign.key = account.key
        account.limits["payload"] = 1000
        answers = [
            await ask(at_system, subject, account.jwt),
            await ask(at_system, subject, "eyJ.no.jwt"),
            await ask(at_system, subject, unknown.jwt),
            await ask(at_system, other, unknown.jwt),
            await ask(at_system, subject, foreign.jwt),
        ]
        errors_of = "jwt update resulted in error"
        assert answers[0] == {"data": {"account": account.public, "code": 200, "message": "jwt updated"}}
        assert answers[1]["error"]["account"] == account.public
        assert answers[1]["error"]["description"].startswith(errors_of)
        assert answers[2]["error"]["description"] == f"{errors_of} - subject does not match jwt content"
        assert answers[3] == {"data": {"account": unknown.public, "code": 200, "message": "jwt update skipped"}}
        assert answers[4]["error"] == {
            "account": account.public, "code": 500, "description": f"{errors_of} - account validation failed",
        }  # fmt: skip
        wire = await log_in(node, account.user())
        await client.close()
        await at_system.close()
        wire.send("PUB x 1001")
        assert await until_end(wire) == ["Maximum Payload Violation"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_directory_of_accounts(kind: str, tmp_path: Path) -> None:
    operator, operator_key = Operator(), Key("operator")
    operator.claims = {"signing_keys": [operator_key.public]}
    system, first, second = operator.account("SYS"), operator.account("A"), Account(operator_key, "B", {})
    folder = tmp_path / "jwt"
    config = (
        f'operator: "{operator.jwt}"\nsystem_account: {system.public}\n'
        f'resolver {{ type: full, dir: "{folder}", allow_delete: true, interval: "1m" }}\n'
    )

    def updated(account: Account) -> dict[str, Any]:
        return {"data": {"account": account.public, "code": 200, "message": "jwt updated"}}

    def to_delete(signer: Key, *accounts: Account) -> str:
        names = [account.public for account in accounts]
        return signer.sign({"iss": signer.public, "sub": signer.public, "nats": {"accounts": names}})

    async with running(kind, tmp_path, config) as node:
        at_system = await connect(node, system.user())
        assert await ask(at_system, "$SYS.REQ.CLAIMS.UPDATE", system.jwt) == updated(system)
        assert await ask(at_system, "$SYS.REQ.CLAIMS.UPDATE", first.jwt) == updated(first)
        subject = f"$SYS.REQ.ACCOUNT.{second.public}.CLAIMS"
        assert await ask(at_system, f"{subject}.UPDATE", second.jwt) == updated(second)
        assert sorted((await ask(at_system, "$SYS.REQ.CLAIMS.LIST"))["data"]) == sorted(
            [system.public, first.public, second.public]
        )
        assert (await at_system.request(f"{subject}.LOOKUP", b"")).data.decode() == second.jwt
        assert (await at_system.request(f"$SYS.REQ.ACCOUNT.{Key('account').public}.CLAIMS.LOOKUP", b"")).data == b""
        assert (folder / f"{first.public}.jwt").read_text() == first.jwt
        inbox = at_system.new_inbox()
        packs = await at_system.subscribe(inbox)
        await at_system.publish("$SYS.REQ.CLAIMS.PACK", b"", reply=inbox)
        parts = [(await packs.next_msg(timeout=5)).data.decode() for _ in range(4)]
        assert sorted(parts[:3]) == sorted(f"{one.public}|{one.jwt}" for one in (system, first, second))
        assert parts[3] == ""
        wire, other = await log_in(node, first.user()), await log_in(node, second.user())
        refusals = {
            to_delete(Operator().key, first): "not trusted",
            to_delete(operator.key, system): "not allowed to delete system account",
            operator.key.sign(
                {"iss": operator.key.public, "sub": operator.key.public, "nats": {}}
            ): "malformed request",
        }
        for body, why in refusals.items():
            description = (await ask(at_system, "$SYS.REQ.CLAIMS.DELETE", body))["error"]["description"]
            assert description.endswith(f"failed - {why}"), description
        assert await ask(at_system, "$SYS.REQ.CLAIMS.DELETE", to_delete(operator_key, first)) == {
            "data": {"code": 200, "message": "deleted 1 accounts"}
        }
        assert await until_end(wire) == ["Account Authentication Expired"]
        assert errors(await other.ask()) == []
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            [f"{system.public}.jwt", f"{second.public}.jwt", f"{first.public}.jwt.deleted"]
        )
        refused = await Wire.open(node.port)
        frames = await refused.log_in(**first.user().connect(refused.info["nonce"].encode()))
        assert errors(frames) == ["Authorization Violation"]
        await at_system.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_jetstream_of_accounts(kind: str, tmp_path: Path) -> None:
    """It is on where the claims say so, with the limits that they set, and when it is taken away it is off."""
    operator = Operator()
    system, account, without = operator.account("SYS"), operator.account("A", **JETSTREAM), operator.account("B")
    account.limits |= {"disk_storage": 1_000_000, "mem_storage": 0, "streams": 1}
    config = (
        f'operator: "{operator.jwt}"\nsystem_account: {system.public}\n'
        f'jetstream {{ store_dir: "{tmp_path / "js"}" }}\n{preload(system, account, without)}'
    )
    async with running(kind, tmp_path, config) as node:
        at_system = await connect(node, system.user())
        client, bare = await connect(node, account.user()), await connect(node, without.user())
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.publish("s", b"x")
        info = await js.account_info()
        assert (info.limits.max_storage, info.limits.max_memory, info.limits.max_streams) == (1_000_000, 0, 1)
        with pytest.raises(nats.js.errors.BadRequestError) as too_many:
            await js.add_stream(name="T", subjects=["t"])
        assert too_many.value.err_code == 10027
        with pytest.raises(nats.js.errors.ServiceUnavailableError) as off:
            await bare.jetstream().account_info()
        assert off.value.err_code == 10039
        without.limits |= JETSTREAM
        await ask(at_system, f"$SYS.REQ.ACCOUNT.{without.public}.CLAIMS.UPDATE", without.jwt)
        await bare.jetstream().add_stream(name="S", subjects=["s"])
        for one in (client, bare, at_system):
            await one.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_accounts_share_what_their_claims_say(kind: str, tmp_path: Path) -> None:
    """Streams and services, renamed or not, public or by token; mappings; and what changes while the server runs."""
    operator = Operator()
    system, exporter, importer = (operator.account(name) for name in ("SYS", "exporter", "importer"))

    def activation(subject: str, kind_of: str, **fields: Any) -> str:
        claims = {"type": "activation", "subject": subject, "kind": kind_of}
        return exporter.key.token(importer.public, "", claims, **fields)

    def imported(subject: str, kind_of: str, **more: Any) -> dict[str, Any]:
        return {"subject": subject, "account": exporter.public, "type": kind_of, **more}

    exporter.claims = {
        "exports": [
            {"subject": "open.>", "type": "stream"},
            {"subject": "closed.*", "type": "stream", "token_req": True},
            {"subject": "ask.>", "type": "service"},
        ],
        "mappings": {"from.*": [{"subject": "open.mapped.$1"}]},
    }
    importer.claims = {
        "imports": [
            imported("open.>", "stream", local_subject="here.>"),
            imported("closed.a", "stream", token=activation("closed.a", "stream")),
            imported("closed.b", "stream"),
            imported("ask.me", "service", local_subject="question"),
        ]
    }
    config = f'operator: "{operator.jwt}"\nsystem_account: {system.public}\n{preload(system, exporter, importer)}'
    async with running(kind, tmp_path, config) as node:
        at_system, giver, taker = [await connect(node, one.user()) for one in (system, exporter, importer)]

        async def answer(message: Any) -> None:
            await message.respond(b"yes")

        await giver.subscribe("ask.me", cb=answer)
        await giver.flush()
        subscription = await taker.subscribe(">")
        await taker.flush()

        async def passes(subject: str) -> str:
            """The subject that has come of it within a moment, "" for none: nats-server answers the giver's PING before
            the taker has what it published."""
            await giver.publish(subject, b"x")
            await giver.flush()
            for _ in range(10):
                await taker.flush()
                if subscription.pending_msgs:
                    return (await subscription.next_msg()).subject
                await asyncio.sleep(0.02)
            return ""

        assert [await passes(subject) for subject in ("open.x", "closed.a", "closed.b", "from.y", "other")] == [
            "here.x", "closed.a", "", "here.mapped.y", "",
        ]  # fmt: skip
        await subscription.unsubscribe()
        assert (await taker.request("question", b"?")).data == b"yes"
        importer.claims["imports"][1]["token"] = activation("closed.a", "stream", exp=5)
        update = f"$SYS.REQ.ACCOUNT.{importer.public}.CLAIMS.UPDATE"
        assert (await ask(at_system, update, importer.jwt))["data"]["message"] == "jwt updated"
        subscription = await taker.subscribe(">")
        await taker.flush()
        assert await passes("closed.a") == ""
        importer.claims["imports"][1]["token"] = activation("closed.a", "stream")
        assert (await ask(at_system, update, importer.jwt))["data"]["message"] == "jwt updated"
        await subscription.unsubscribe()
        subscription = await taker.subscribe(">")
        await taker.flush()
        async with asyncio.timeout(5):  # nats-server on a busy machine has answered before it shares again
            while await passes("closed.a") != "closed.a":
                await asyncio.sleep(0.02)
        exporter.claims["exports"] = exporter.claims["exports"][1:]
        await ask(at_system, f"$SYS.REQ.ACCOUNT.{exporter.public}.CLAIMS.UPDATE", exporter.jwt)
        assert [await passes(subject) for subject in ("open.x", "closed.a")] == ["", "closed.a"]
        for one in (at_system, giver, taker):
            await one.close()
