"""Operator mode of a whole node: accounts that come, change, expire and go (node/operator_mode.py)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from jetcluster.auth.resolver import DirectoryStore
from jetcluster.cli.streams import Wish, run_add, run_mirror
from jetcluster.client.credentials import Credentials
from jetcluster.client.servers import ServerOptions
from jetcluster.config.options import ResolverOptions
from jetcluster.monitor.accountz import accountz
from jetcluster.monitor.accstatz import accstatz
from jetcluster.monitor.claims_view import of_operators
from jetcluster.monitor.pages import NodeSource
from jetcluster.node.node import Node
from tests.signer import JETSTREAM, Account, Key, Operator, User, preload
from tests.unit.node.rig import running
from tests.unit.server.wire import Wire, errors, until_end


async def log_in(node: Node, user: User, **connect: Any) -> Wire:
    wire = await Wire.open(node.server.port)
    assert errors(await wire.log_in(**user.connect(wire.info["nonce"].encode()), **connect)) == []
    return wire


async def refused(node: Node, user: User) -> bool:
    wire = await Wire.open(node.server.port)
    return errors(await wire.log_in(**user.connect(wire.info["nonce"].encode()))) == ["Authorization Violation"]


async def ask(node: Node, subject: str, body: str = "", count: int = 1, account: str = "") -> list[Any]:
    """The answers that `account` gets, or the system account when none is named."""
    bus = node.server.account(account or node.options.system_account_name)
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    inbox = bus.subscribe(b"_INBOX.1", lambda _s, _r, _h, payload, _o: answers.put_nowait(payload))
    bus.ask(subject.encode(), body.encode(), b"_INBOX.1")
    found = [await asyncio.wait_for(answers.get(), 5) for _ in range(count)]
    bus.unsubscribe(inbox)
    return [json.loads(one) if one.startswith(b"{") else one.decode() for one in found]


async def update(node: Node, account: Account) -> Any:
    (answer,) = await ask(node, f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.UPDATE", account.jwt)
    answer.pop("server")
    return answer


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come to be")


class Memory:
    """An operator with a system account and one more, all preloaded."""

    def __init__(self) -> None:
        self.operator = Operator()
        self.system, self.account = self.operator.account("SYS"), self.operator.account("A")

    def config(self, *more: Account) -> str:
        known = preload(self.system, self.account, *more)
        return f'operator: "{self.operator.jwt}"\nsystem_account: {self.system.public}\n{known}'


@pytest.fixture
def case() -> Memory:
    return Memory()


async def test_permissions_and_limits_change_while_a_user_is_here(tmp_path: Path) -> None:
    case, scope = Memory(), Key("account")

    def signing_keys(**template: Any) -> dict[str, Any]:
        return {"signing_keys": [{"kind": "user_scope", "key": scope.public, "template": template}]}

    case.account.claims = signing_keys(pub={"allow": ["a"]})
    async with running(tmp_path, case.config()) as node:
        wire = await log_in(node, case.account.scoped("U", scope))
        assert errors(await wire.ask("PUB a 0", "")) == []
        assert errors(await wire.ask("PUB b 0", "")) == ['Permissions Violation for Publish to "b"']
        await wire.ask("SUB x 1", "SUB y 2")
        case.account.claims = signing_keys(pub={"allow": ["b"]}, sub={"allow": ["y"]})
        assert (await update(node, case.account))["data"]["message"] == "jwt updated"
        assert errors(await wire.ask()) == ['Permissions Violation for Subscription to "x" (sid "1")']
        assert errors(await wire.ask("PUB a 0", "")) == ['Permissions Violation for Publish to "a"']
        assert errors(await wire.ask("PUB b 0", "")) == []
        case.account.claims = signing_keys(subs=0)
        await update(node, case.account)
        assert await until_end(wire) == ["maximum subscriptions exceeded"]


async def test_payload_and_connections(tmp_path: Path, case: Memory) -> None:
    case.account.limits |= {"conn": 2, "payload": 10}
    async with running(tmp_path, case.config()) as node:
        first, second = [await log_in(node, case.account.user(payload=size)) for size in (5, -1)]
        third = await Wire.open(node.server.port)
        frames = await third.log_in(**case.account.user().connect(third.info["nonce"].encode()))
        assert errors(frames) == ["maximum account active connections exceeded"]
        assert errors(await second.ask("PUB a 10", "0123456789")) == []
        case.account.limits |= {"conn": 1}
        await update(node, case.account)
        assert await until_end(second) == ["maximum account active connections exceeded"]
        first.send("PUB a 6")
        assert await until_end(first) == ["Maximum Payload Violation"]


async def test_claims_are_the_system_accounts_to_bring(tmp_path: Path, case: Memory) -> None:
    """Another user that publishes to these subjects, with a token that the operator has signed, changes nothing."""
    async with running(tmp_path, directory(case, tmp_path, "allow_delete: true")) as node:
        await ask(node, "$SYS.REQ.CLAIMS.UPDATE", case.system.jwt)
        await update(node, case.account)
        assert node.operator is not None
        known, name, key = node.operator.known.by_key, case.account.public, case.operator.key
        before = known[name].claims.token.text
        case.account.limits |= {"payload": 7}
        deletion = key.sign({"iss": key.public, "sub": key.public, "nats": {"accounts": [name]}})
        wire = await log_in(node, case.account.user(), no_responders=True, headers=True)
        await wire.ask("SUB _INBOX.1 1")
        attempts = [
            (subject, body)
            for subject in (
                "$SYS.REQ.CLAIMS.UPDATE", f"$SYS.REQ.ACCOUNT.{name}.CLAIMS.UPDATE",
                f"$SYS.ACCOUNT.{name}.CLAIMS.UPDATE", f"$SYS._INBOX.CLAIMS.{node.server.server_id}",
            )
            for body in (case.account.jwt, f"{name}|{case.account.jwt}")
        ]  # fmt: skip
        asked = ("CLAIMS.LIST", "CLAIMS.PACK", f"ACCOUNT.{case.system.public}.CLAIMS.LOOKUP")
        attempts += [("$SYS.REQ.CLAIMS.DELETE", deletion), *((f"$SYS.REQ.{one}", "") for one in asked)]
        for subject, body in attempts:
            frames = await wire.ask(f"PUB {subject} _INBOX.1 {len(body)}", body)
            told = {frame.payload for frame in frames if frame.verb == "MSG"}
            assert not told, (subject, told)
        await asyncio.sleep(0.05)
        assert known[name].claims.token.text == before and not known[name].removed
        # The system account's user may; the limit holds for who is here already.
        assert (await update(node, case.account))["data"]["message"] == "jwt updated"
        wire.send("PUB a 8")
        assert await until_end(wire) == ["Maximum Payload Violation"]
        # And nobody's token but the operator's is taken, whoever brings it.
        for signer in (Operator().key, case.account.key, case.system.key):
            foreign = Account(signer, "A", {})
            foreign.key = case.account.key
            assert "error" in await update(node, foreign)
        (answer,) = await ask(node, "$SYS.REQ.CLAIMS.DELETE", deletion)
        assert answer["data"]["message"] == "deleted 1 accounts"


async def test_times_far_away(tmp_path: Path) -> None:
    """The last second there is, and one that is long over, of whoever has one."""
    case, last = Memory(), 2**63 - 1
    case.operator.key.token = partial(case.operator.key.token, exp=last)  # type: ignore[method-assign]
    case.account.claims = {"revocations": {Key("user").public: last}}
    async with running(tmp_path, case.config()) as node:
        wire = await log_in(node, case.account.user(fields={"exp": last, "iat": -last, "nbf": -last}))
        assert errors(await wire.ask()) == []
        detail = accountz(node, {"acc": case.account.public})["account_detail"]
        assert list(detail["revoked_user"].values()) == ["9999-12-31T23:59:59Z"]
        wire.send("SUB r 1", "PUB $SYS.REQ.USER.INFO r 0", "")
        assert b'"expires":' in (await wire.frame() or pytest.fail("no answer")).payload
        assert await refused(node, case.account.user(fields={"nbf": last}))


async def test_jetstream_is_on_where_the_claims_say_so(tmp_path: Path, case: Memory) -> None:
    store = f'jetstream {{ store_dir: "{tmp_path}" }}\n'
    async with running(tmp_path, case.config() + store) as node:
        assert node.jetstream is not None
        assert list(node.jetstream.apis) == []
        case.account.limits |= JETSTREAM | {"disk_storage": 1000, "streams": 0}
        await update(node, case.account)
        assert list(node.jetstream.apis) == [case.account.public]
        assert node.jetstream.capacity is not None
        limits = node.jetstream.capacity.own_limits(case.account.public)
        assert (limits.max_storage, limits.max_memory, limits.max_streams) == (1000, -1, -1)
        case.account.limits |= dict.fromkeys(JETSTREAM, 0)
        await update(node, case.account)
        assert list(node.jetstream.apis) == []


async def test_another_limit_of_an_account_counts_for_the_next_message(tmp_path: Path, case: Memory) -> None:
    case.account.limits |= JETSTREAM
    async with running(tmp_path, case.config() + f'jetstream {{ store_dir: "{tmp_path}" }}\n') as node:
        account = case.account.public
        created = await ask(node, "$JS.API.STREAM.CREATE.S", '{"name":"S","subjects":["s"]}', account=account)
        assert "error" not in created[0]
        assert (await ask(node, "s", "x" * 500, account=account))[0]["seq"] == 1
        case.account.limits |= {"disk_storage": 600}
        await update(node, case.account)
        assert (await ask(node, "s", "x" * 500, account=account))[0]["error"]["err_code"] == 10002


async def test_a_reload_brings_other_accounts(tmp_path: Path, case: Memory) -> None:
    new, gone = case.operator.account("new"), case.operator.account("gone")
    async with running(tmp_path, case.config(gone)) as node:
        stays, leaves = await log_in(node, case.account.user()), await log_in(node, gone.user())
        assert await refused(node, new.user())
        path = tmp_path / "c.conf"
        before = path.read_text()
        path.write_text(
            before.replace(preload(case.system, case.account, gone), preload(case.system, case.account, new))
        )
        assert node.reload() == ""
        assert await until_end(leaves) == ["Authorization Violation"]
        assert errors(await stays.ask()) == []
        await log_in(node, new.user())
        path.write_text(before.replace(case.operator.jwt, Operator().jwt))
        assert "TrustedOperators" in node.reload()
        await log_in(node, case.account.user())


async def test_activations(tmp_path: Path, case: Memory) -> None:
    """An import stands while the exporter's token for it does."""
    exporter, strange_key = case.operator.account("exporter"), Key("account")
    exporter.claims = {"exports": [{"subject": "x.>", "type": "stream", "token_req": True}]}

    def activation(signer: Key, **fields: Any) -> str:
        claims = {"type": "activation", "subject": "x.>", "kind": "stream", **fields.pop("claims", {})}
        return signer.token(fields.pop("sub", case.account.public), "", claims, **fields)

    def importing(token: str) -> dict[str, Any]:
        return {"imports": [{"subject": "x.y", "account": exporter.public, "type": "stream", "token": token}]}

    def is_activated(node: Node) -> bool:
        found = (node.options.accounts or {})[case.account.public].imports
        return [one.activated for one in found] == [True]

    case.account.claims = importing(activation(exporter.key, iat=100))
    async with running(tmp_path, case.config(exporter)) as node:
        assert is_activated(node)
        exporter.claims["exports"][0]["revocations"] = {case.account.public: 100}
        await update(node, exporter)
        assert not is_activated(node)
        exporter.claims["exports"][0]["revocations"] = {case.account.public: 99}
        await update(node, exporter)
        assert is_activated(node)
        case.account.claims = importing(activation(exporter.key, iat=100, exp=int(time.time()) + 2))
        await update(node, case.account)
        assert is_activated(node)
        await eventually(lambda: not is_activated(node))
        for token in (
            activation(exporter.key, iat=100, exp=5),
            activation(strange_key, iat=100, claims={"issuer_account": exporter.public}),
        ):
            case.account.claims = importing(token)
            assert "data" in await update(node, case.account)
            assert not is_activated(node)
        for token in (activation(strange_key), activation(exporter.key, sub=exporter.public), "eyJ.no.token"):
            case.account.claims = importing(token)
            assert "validation failed" in (await update(node, case.account))["error"]["description"]


def directory(case: Memory, folder: Path, more: str = "") -> str:
    return (
        f'operator: "{case.operator.jwt}"\nsystem_account: {case.system.public}\n'
        f'resolver {{ type: full, dir: "{folder}/jwt", {more} }}\n'
    )


async def test_a_directory_begins_with_a_system_account_that_may_bring_the_others(tmp_path: Path, case: Memory) -> None:
    config = directory(case, tmp_path, "limit: 2")
    async with running(tmp_path, config) as node:
        await log_in(node, case.system.user())
        assert await refused(node, case.account.user())
        for account in (case.system, case.account):
            (answer,) = await ask(node, "$SYS.REQ.CLAIMS.UPDATE", account.jwt)
            assert answer["data"] == {"account": account.public, "code": 200, "message": "jwt updated"}
        await log_in(node, case.account.user())
        full = case.operator.account("one too many")
        (answer,) = await ask(node, "$SYS.REQ.CLAIMS.UPDATE", full.jwt)
        assert answer["error"]["description"] == "jwt update resulted in error - jwt store is full"
        foreign = Operator().account("foreign")
        (answer,) = await ask(node, "$SYS.REQ.CLAIMS.UPDATE", foreign.jwt)
        assert answer["error"]["description"] == "jwt update resulted in error - account validation failed"
        assert not (tmp_path / "jwt" / f"{foreign.public}.jwt").exists()
    (tmp_path / "jwt" / f"{case.account.public}.jwt.tmp").write_text("half")
    async with running(tmp_path, config) as node:
        await log_in(node, case.account.user())


async def test_servers_that_missed_a_jwt_get_it_from_the_others(tmp_path: Path, case: Memory) -> None:
    """Two servers on one bus: what one says on the system account the other one hears."""
    late = case.operator.account("late")
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    async with running(tmp_path / "1", directory(case, tmp_path / "1", "interval: '100ms'")) as one:
        await ask(one, "$SYS.REQ.CLAIMS.UPDATE", case.account.jwt)
        (case_old, case.account.fields) = (case.account.jwt, {"iat": 2})
        async with running(tmp_path / "2", directory(case, tmp_path / "2", "interval: '100ms'")) as two:
            for text in (case_old, late.jwt):
                await ask(two, "$SYS.REQ.CLAIMS.UPDATE", text)
            await ask(one, "$SYS.REQ.CLAIMS.UPDATE", case.account.jwt)
            connect(one, two)
            folders = [tmp_path / name / "jwt" for name in ("1", "2")]
            await eventually(lambda: all((folder / f"{late.public}.jwt").exists() for folder in folders))
            path = folders[1] / f"{case.account.public}.jwt"
            await eventually(lambda: path.read_text() == case.account.jwt)  # the younger one, at both
            assert (folders[0] / path.name).read_text() == case.account.jwt
            await log_in(one, late.user())


def connect(one: Node, two: Node, *subjects: bytes) -> None:
    """Passes what concerns claims from each to the other, as a mesh would."""
    buses = [node.server.account(node.options.system_account_name) for node in (one, two)]
    carried: list[bytes] = []

    def carry(to: Any) -> Callable[..., None]:
        def take(subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _origin: Any) -> None:
            if not carried:
                carried.append(payload)
                to.ask(subject, payload, reply)
                carried.clear()

        return take

    for source, target in (buses, buses[::-1]):
        for subject in (b"$SYS.JETCLUSTER.>", b"$SYS._INBOX.CLAIMS.>", *subjects):
            source.subscribe(subject, carry(target))


async def test_an_account_is_looked_for_at_the_other_servers(tmp_path: Path, case: Memory) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    async with running(tmp_path / "1", directory(case, tmp_path / "1", "interval: '1h'")) as one:
        await ask(one, "$SYS.REQ.CLAIMS.UPDATE", case.account.jwt)
        async with running(tmp_path / "2", directory(case, tmp_path / "2", "interval: '1h', timeout: '1s'")) as two:
            connect(one, two, b"$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP")
            assert two.monitoring.claims is not None
            assert await two.monitoring.claims.ask_others(case.account.public, 1, 5.0) == case.account.jwt
            assert await two.monitoring.claims.ask_others(Key("account").public, 1, 5.0) == ""
            assert await two.monitoring.claims.ask_others(Key("account").public, 9, 0.1) == ""


async def test_a_younger_jwt_that_comes_while_the_account_is_looked_for_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server still answers with the older one: what the younger one revokes stays revoked."""
    case, asked, answer = Memory(), asyncio.Event(), asyncio.Event()
    older, revoked = case.account.jwt, case.account.user()

    async def ask_others(_node: Node, account: str, seconds: float) -> str:
        asked.set()
        await answer.wait()
        return older

    monkeypatch.setattr(Node, "_ask_others", ask_others)
    async with running(tmp_path, directory(case, tmp_path)) as node:
        first = asyncio.ensure_future(refused(node, revoked))
        await asyncio.wait_for(asked.wait(), 20)
        case.account.fields, case.account.claims = {"iat": 2}, {"revocations": {revoked.key.public: 5}}
        assert (await update(node, case.account))["data"]["message"] == "jwt updated"
        answer.set()
        assert await first
        assert await refused(node, revoked)
        await log_in(node, case.account.user())


async def test_servers_compare_their_jwts_again_after_the_disk_failed(
    tmp_path: Path, case: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def drop_old(_store: DirectoryStore, now: float) -> None:
        nonlocal tries
        tries += 1
        if tries > 1:  # not at the start
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(DirectoryStore, "drop_old", drop_old)
    async with running(tmp_path, directory(case, tmp_path, "interval: '10ms'")) as node:
        bus, compared = node.server.account(node.options.system_account_name), []
        bus.subscribe(b"$SYS.JETCLUSTER.CLAIMS.COMPARE", lambda *message: compared.append(message))
        await eventually(lambda: tries > 2 and len(compared) > 2)


async def test_an_account_that_is_removed_may_come_back(tmp_path: Path, case: Memory) -> None:
    async with running(tmp_path, directory(case, tmp_path, "allow_delete: true")) as node:
        await ask(node, "$SYS.REQ.CLAIMS.UPDATE", case.account.jwt)
        wire = await log_in(node, case.account.user())
        key = case.operator.key
        body = key.sign({"iss": key.public, "sub": key.public, "nats": {"accounts": [case.account.public]}})
        (answer,) = await ask(node, "$SYS.REQ.CLAIMS.DELETE", body)
        assert answer["data"] == {"code": 200, "message": "deleted 1 accounts"}
        assert await until_end(wire) == ["Account Authentication Expired"]
        assert await refused(node, case.account.user())
        assert node.reload() == ""
        assert await refused(node, case.account.user())
        path = tmp_path / "jwt" / f"{case.account.public}.jwt"
        path.with_suffix(".jwt.deleted").rename(path)  # by hand, as nsc's configuration says
        assert node.reload() == ""
        await log_in(node, case.account.user())
        await ask(node, "$SYS.REQ.CLAIMS.DELETE", body)
        assert await refused(node, case.account.user())
        await ask(node, "$SYS.REQ.CLAIMS.UPDATE", case.account.jwt)
        await log_in(node, case.account.user())


def test_the_directory_of_a_cache_forgets_what_was_used_least(tmp_path: Path) -> None:
    operator = Operator()
    accounts = [operator.account(name) for name in "abc"]
    store = DirectoryStore(ResolverOptions("cache", str(tmp_path), limit=2))
    for account in accounts[:2]:
        assert store.save(account.public, account.jwt)
    assert not store.save(accounts[0].public, accounts[0].jwt)
    store.fetch(accounts[0].public)
    assert store.save(accounts[2].public, accounts[2].jwt)
    assert store.accounts() == sorted([accounts[0].public, accounts[2].public])
    assert store.fetch(accounts[1].public) is None
    again = DirectoryStore(ResolverOptions("cache", str(tmp_path), limit=2, ttl=60.0))
    assert again.digest == store.digest != bytes(32)
    path = tmp_path / f"{accounts[0].public}.jwt"
    os.utime(path, (1000, 1000))
    again.drop_old(time.time())
    assert again.accounts() == [accounts[2].public]
    assert not path.exists()


async def test_websocket_clients_bring_a_jwt_in_a_cookie(tmp_path: Path, case: Memory) -> None:
    """nats-server takes the JWT of CONNECT before that of the cookie, and asks for a signature unless it is a bearer's.
    The port's own users and tokens say nothing in operator mode."""
    bearer, signing = case.account.user(bearer_token=True), case.account.user()
    of_websocket = case.account.user(bearer_token=True, allowed_connection_types=["WEBSOCKET"])
    standard = case.account.user(bearer_token=True, allowed_connection_types=["STANDARD"])
    port = "websocket { listen: '127.0.0.1:-1', no_tls: true, jwt_cookie: c, authorization { user: u, password: p } }\n"
    async with running(tmp_path, case.config() + port) as node:
        url = node.listening()["websocket"][0]

        async def log_in_by(cookie: str, connect: dict[str, Any]) -> str:
            headers = {"Cookie": f"a=b; c={cookie}"}
            async with aiohttp.ClientSession() as session, session.ws_connect(url, headers=headers) as wire:
                info = json.loads((await wire.receive_bytes()).partition(b" ")[2])
                assert info["auth_required"] is True
                if connect.pop("sign", None):
                    connect["sig"] = signing.key.signature(info["nonce"]).decode()
                await wire.send_bytes(
                    b"CONNECT " + json.dumps({"verbose": False, **connect}).encode() + b"\r\nPING\r\n"
                )
                return (await wire.receive_bytes()).decode().strip()

        refusal = "-ERR 'Authorization Violation'"
        assert await log_in_by(bearer.jwt, {}) == "PONG"
        assert await log_in_by(of_websocket.jwt, {}) == "PONG"
        assert await log_in_by(standard.jwt, {}) == refusal
        assert await log_in_by(signing.jwt, {}) == refusal
        assert await log_in_by(signing.jwt, {"sign": True}) == "PONG"
        assert await log_in_by("", {"jwt": bearer.jwt}) == "PONG"
        assert await log_in_by(bearer.jwt, {"jwt": signing.jwt}) == refusal
        assert await log_in_by("", {"user": "u", "pass": "p"}) == refusal
        assert await log_in_by(Operator().account("x").user(bearer_token=True).jwt, {}) == refusal
        assert await refused(node, of_websocket)


async def test_info_says_where_a_client_has_landed(tmp_path: Path, case: Memory) -> None:
    async with running(tmp_path, case.config()) as node:
        for account in (case.account, case.system):
            wire = await Wire.open(node.server.port)
            assert wire.info["auth_required"] is True
            wire.send(f"CONNECT {json.dumps(account.user().connect(wire.info['nonce'].encode()) | {'protocol': 1})}")
            frames = await wire.ask()
            (told,) = [json.loads(frame.text) for frame in frames + await wire.ask() if frame.verb == "INFO"]
            assert (told["connect_info"], told["remote_account"]) == (True, account.public)
            assert told.get("acc_is_sys") == (True if account is case.system else None)


async def test_monitoring_shows_what_the_jwts_say(tmp_path: Path, case: Memory) -> None:
    """Fields and values are those of nats-server 2.15.2, but for the JWTs of bearers."""
    now = int(time.time())
    case.account.claims = {"tags": ["t:1"], "revocations": {"*": 5}}
    case.account.fields = {"iat": 10}
    user = case.account.user("joe", tags=["q:1"], fields={"iat": now, "exp": now + 1000})
    bearer = case.account.user(bearer_token=True, fields={"iat": now})
    async with running(tmp_path, case.config()) as node:
        wire, _ = await log_in(node, user), await log_in(node, bearer)
        account, operator = case.account.public, case.operator.key.public
        shown = {one["authorized_user"]: one for one in NodeSource(node).page("connz", {"auth": "1"})["connections"]}
        own = shown[user.key.public]
        assert [own[key] for key in ("account", "jwt", "issuer_key", "name_tag", "tags")] == [
            account, user.jwt, account, "A", ["q:1"],
        ]  # fmt: skip
        assert "jwt" not in shown[bearer.key.public]
        assert bearer.jwt not in json.dumps(shown)
        detail = accountz(node, {"acc": account})["account_detail"]
        wanted = ("name_tag", "issuer_key", "jwt", "tags", "expired", "revoked_user")
        assert [detail[key] for key in wanted] == [
            "A", operator, case.account.jwt, ["t:1"], False, {"*": "1970-01-01T00:00:05Z"},
        ]  # fmt: skip
        assert detail["decoded_jwt"]["sub"] == account
        assert detail["update_time"] > "2026"
        stats = {one["acc"]: one["name"] for one in accstatz(node, {"unused": "1"})["account_statz"]}
        assert stats == {"$G": "$G", account: "A", case.system.public: "SYS"}
        operators = of_operators(node)
        assert operators["trusted_operators_jwt"] == [case.operator.jwt]
        assert operators["trusted_operators_claim"][0]["sub"] == operator
        wire.send("SUB r 1", "PUB $SYS.REQ.USER.INFO r 0", "")
        told = json.loads((await wire.frame() or pytest.fail("no answer")).payload)["data"]
        assert 998 * 10**9 <= told.pop("expires") <= 1000 * 10**9
        assert told == {"user": user.key.public, "account": account, "account_name": "A", "user_name": "joe"}
        case.account.fields = {"iat": 20, "exp": int(time.time()) + 1}
        await update(node, case.account)
        assert await until_end(wire) == ["Account Authentication Expired"]
        assert accountz(node, {"acc": account})["account_detail"]["expired"] is True


async def test_our_own_commands_bring_credentials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Memory
) -> None:
    case.account.limits |= JETSTREAM
    good, wrong = tmp_path / "good.creds", tmp_path / "wrong.creds"
    good.write_text(case.account.user().credentials)
    wrong.write_text(case.operator.account("B").user().credentials)
    async with running(tmp_path, case.config() + f'jetstream {{ store_dir: "{tmp_path}/js" }}\n') as node:
        url = f"nats://127.0.0.1:{node.server.port}"

        def servers(file: str) -> ServerOptions:
            return ServerOptions((url,), Credentials(creds_file=file))

        async def mirror(file: str) -> int:
            return await asyncio.to_thread(run_mirror, servers(file), "S", "hub", "M", 1, 10.0)

        assert await mirror(str(good)) == 0
        for file in (str(wrong), str(tmp_path / "nowhere"), ""):
            assert await mirror(file) == 2
        assert await asyncio.to_thread(run_add, servers(str(good)), Wish("b", 1, "file", 0, 0.0, "")) == 0
        told = capsys.readouterr().err
        assert "Authorization Violation" in told
        assert f"credentials file {tmp_path}/nowhere: No such file" in told
        assert not any(secret in told for secret in (good.read_text().split()[5], wrong.read_text().split()[5]))
