"""The exam of reloads: what another configuration changes at once, what it leaves as it is, and how it is refused."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.layout import Server
from testkit.sim.session import ApiError, Disconnected, Msg, NoResponders, Session
from tests.sim.cluster.dialogues import PING, PONG, TOO_MANY, answers, connect
from tests.sim.cluster.exam import Exam, with_account, with_accounts
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workloads.line_exam import Line, line_to

NAME = "RELOADED"
SOON = 5.0
"""Seconds within which a server goes by its new configuration."""
LATE = "LATE { users: [ { user: newcomer, password: newcomer } ] }"
"""An account that is not there at first."""
SMALL_PAYLOAD = 2000
"""`max_payload` of one part."""


@dataclass(slots=True, frozen=True)
class Account:
    """The exam's own account, as a configuration has it."""

    users: Sequence[str] = ("steady",)
    denied: str = ""
    """A subject that `steady` may neither publish on nor subscribe to."""
    mapped: str = ""
    """Where messages on `rel.in` go; "" for no mapping."""
    streams: int = 2
    connections: int = -1
    """Connections at each server; -1 for any number."""

    def text(self) -> str:
        denies = f", permissions: {{ publish: {{ deny: {self.denied} }}, subscribe: {{ deny: {self.denied} }} }}"
        users = ", ".join(
            f"{{ user: {one}, password: {one}{denies if self.denied and one == 'steady' else ''} }}"
            for one in self.users
        )
        mappings = f"mappings {{ rel.in: {self.mapped} }}" if self.mapped else ""
        limits = f"limits {{ max_connections: {self.connections} }}" if self.connections >= 0 else ""
        return f"{NAME} {{ jetstream: {{ max_streams: {self.streams} }}\n users: [ {users} ]\n {mappings} {limits} }}"


USUAL = Account()


class ReloadExam(Exam):
    name = "exam-reloads"
    weight = 0
    judges = (Exact,)
    account = USUAL
    promises = (
        "users, permissions, mappings and limits of an account change with a reload, and who may stay is not sent away",
        "tags and sizes of messages that come with a reload count for what is asked for afterwards",
        "a configuration that is refused changes nothing, and the next one that is right counts",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        with_accounts(deployment, USUAL.text())

    async def check(self) -> None:
        if NAME not in self.deployment.servers[self.members[0]].config:
            return  # leaf clusters have no accounts
        parts = [self._users, self._permissions, self._mappings, self._limits, self._sizes, self._tags, self._refused]
        await self.examine([*parts, self._accounts, self._connections], 5)

    # ---- servers

    def _everyone(self) -> list[str]:
        """All that clients may come to, with JetStream or without."""
        return sorted(name for name in self.deployment.servers if self.deployment.machines[name].ready)

    async def _reload(self, change: Callable[[Server], Server]) -> None:
        """Each server has another configuration, one soon after the other."""
        for name in self.rng.sample(self._everyone(), len(self._everyone())):
            self.deployment.servers[name] = change(self.deployment.servers[name])
            self.deployment.machines[name].signal(signal.SIGHUP)
            await asyncio.sleep(self.rng.uniform(0.0, 0.05))

    async def _renew(self, **fields: Any) -> None:
        """The account changes at all servers."""
        before, self.account = self.account, replace(USUAL, **fields)
        old, new = before.text(), self.account.text()
        await self._reload(lambda server: replace(server, config=server.config.replace(old, new, 1)))

    async def _soon(self, what: str, is_so: Callable[[], bool]) -> None:
        """It comes true within SOON."""
        end = self.now + SOON
        while not is_so() and self.now < end:
            await asyncio.sleep(0.05)
        self.require(is_so(), f"not {SOON} s after the reload: {what}")

    async def _clients(self, user: str = "steady") -> list[Session]:
        return [await self.session(f"{user}-{name}", name, user=user) for name in self._everyone()]

    async def _leave(self, clients: Sequence[Session]) -> None:
        for one in clients:
            self.equal(f"connections of {one.name}", one.connects, 1)
            await one.close()

    async def _turned_away(self, user: str) -> None:
        """No server lets the user in."""
        for name in self._everyone():
            session = Session(f"{self.name}-{self.part}-{user}-{name}", self.deployment.addresses(name), user=user)
            session.dial()
            await self._soon(f"{name} turns {user} away", lambda session=session: bool(session.errors))  # type: ignore[misc]
            self.equal(
                f"{user} at {name}", (session.connects, session.errors[0]), (0, "-ERR 'Authorization Violation'")
            )
            await session.close()

    # ---- parts

    async def _users(self, session: Session) -> None:
        """A user comes and goes; who is there stays."""
        steady = await self._clients()
        await self._turned_away("late")
        await self._renew(users=("steady", "late"))
        await asyncio.sleep(SOON / 2)
        late = await self._clients("late")
        await self._renew()
        for one in late:
            await self._soon(f"{one.name} is sent away", lambda one=one: not one.connected and bool(one.errors))  # type: ignore[misc]
            await one.close()
        await self._turned_away("late")
        await self._leave(steady)

    async def _accounts(self, session: Session) -> None:
        """An account comes to one server after the other: who is there early is heard at those that know it late."""
        clients: list[Session] = []
        got: list[Msg] = []
        for name in self.rng.sample(self._everyone(), len(self._everyone())):
            server = self.deployment.servers[name]
            self.deployment.servers[name] = with_account(server, LATE)
            self.deployment.machines[name].signal(signal.SIGHUP)
            await asyncio.sleep(1.0)
            clients.append(await self.session(f"new-{name}", name, user="newcomer"))
            clients[-1].subscribe("new.>", got.append)
            await clients[-1].flush()
        await self._delivered(clients, "new.one", got, len(clients))
        await self._leave(clients)
        await self._reload(lambda one: replace(one, config=one.config.replace(f" {LATE}\n", "", 1)))
        await asyncio.sleep(1.0)
        await self._turned_away("newcomer")

    async def _connections(self, session: Session) -> None:
        """Fewer clients may be there, and then more: who came last goes, and whoever is one too many is told so."""
        name = self.rng.choice(self._everyone())
        lines = [await self._enters(name) for _ in range(4)]
        for most in (3, 1, 2, -1):
            await self._renew(connections=most)
            await asyncio.sleep(SOON / 2)
            stay = lines[:most] if most >= 0 else lines
            self.equal(f"who stays of {len(lines)} with room for {most}", [not line.over for line in lines],
                       [line in stay for line in lines])  # fmt: skip
            for line in lines:
                if line not in stay:
                    self.equal("what one hears who goes", answers(line.heard), TOO_MANY)
            lines = stay
            while most < 0 or len(lines) < most:
                lines.append(await self._enters(name))
                if len(lines) > 4:
                    break
            if most >= 0:
                line = await line_to(self.deployment, name)
                line.say(connect("steady") + PING)
                self.equal("what one hears who is too many", (await line.answer(TOO_MANY), line.over), (TOO_MANY, True))
            for line in lines:
                line.say(PING)
                self.equal("who is there", await line.answer(PONG), PONG)
        await self._renew()
        for line in lines:
            line.go(at_once=True)

    async def _enters(self, name: str) -> Line:
        line = await line_to(self.deployment, name)
        line.say(connect("steady") + PING)
        self.equal("who comes in", await line.answer(PONG), PONG)
        return line

    async def _permissions(self, session: Session) -> None:
        """A subject is denied, and allowed again, to clients that are connected."""
        clients = await self._clients()
        got: list[Msg] = []
        for one in clients:
            one.subscribe("rel.denied", got.append)
        await self._delivered(clients, "rel.denied", got, len(clients))
        await self._renew(denied="rel.denied")
        await self._soon("nothing goes there", lambda: all("rel.denied" in "".join(one.errors) for one in clients))
        await self._delivered(clients, "rel.denied", got, 0)
        await self._delivered(clients, "rel.other", got, 0)
        await self._renew()
        await asyncio.sleep(SOON / 2)
        for one in clients:
            one.subscribe("rel.denied", got.append)
        await self._delivered(clients, "rel.denied", got, len(clients))
        await self._leave(clients)

    async def _delivered(self, clients: Sequence[Session], subject: str, got: list[Msg], each: int) -> None:
        """A message of each client comes `each` times."""
        for one in clients:
            await one.flush()
        await asyncio.sleep(1.0)  # subscriptions are told to the other servers
        got.clear()
        for one in clients:
            one.publish(subject, b"x")
            await one.flush()
        await asyncio.sleep(1.0)
        self.equal(f"messages on {subject}", len(got), each * len(clients))

    async def _mappings(self, session: Session) -> None:
        """A mapping comes, becomes another one, and goes."""
        clients = await self._clients()
        got: list[Msg] = []
        for one in clients:
            one.subscribe("rel.>", got.append)
        for to in ("rel.one", "rel.two", ""):
            await self._renew(mapped=to)
            await asyncio.sleep(SOON / 2)
            await self._delivered(clients, "rel.in", got, len(clients))
            self.equal("subjects", {msg.subject for msg in got}, {to or "rel.in"})
        await self._leave(clients)

    async def _limits(self, session: Session) -> None:
        """An account may have more streams, and fewer than it has; those that it has stay."""
        clients = await self._clients()
        made: list[str] = []
        for most in (2, 4, 1, 3):
            await self._renew(streams=most)
            await asyncio.sleep(SOON / 2)
            for _ in range(2):
                error = await self._created(clients, f"REL{len(made)}")
                self.equal(f"stream {len(made) + 1} of {most}", error, 0 if len(made) < most else 10027)
                made += [f"REL{len(made)}"] if not error else []
        names = (await self.ask(clients[0], "STREAM.NAMES"))["streams"]
        self.equal("streams", sorted(names), made)
        for name in made:
            await self.ask(clients[0], f"STREAM.DELETE.{name}")
        await self._renew()
        await self._leave(clients)

    async def _created(self, clients: Sequence[Session], name: str, **config: Any) -> int:
        """The code of the error; 0 for none. Asked for again where nobody answers."""
        body = {"name": name, "subjects": [f"rel.{name}"], "num_replicas": 1, **config}
        for _ in range(20):
            try:
                await self.rng.choice(list(clients)).api(f"STREAM.CREATE.{name}", body)
            except ApiError as error:
                if error.code != 503:
                    return error.err_code
            except (TimeoutError, Disconnected, NoResponders):
                pass
            else:
                return 0
            await asyncio.sleep(0.5)
        return -1

    async def _sizes(self, session: Session) -> None:
        """Smaller messages only, and then again those that there were before: clients are told so."""
        clients = await self._clients()
        most = {name: self.deployment.servers[name].max_payload for name in self._everyone()}
        await self._reload(lambda server: replace(server, max_payload=SMALL_PAYLOAD))
        await self._soon("clients are told", lambda: all(one.info["max_payload"] == SMALL_PAYLOAD for one in clients))
        for one in clients:
            one.publish("rel.big", bytes(SMALL_PAYLOAD))
            await one.flush()
            self.equal(f"connections of {one.name}", (one.connects, one.errors), (1, []))
            with suppress(Disconnected, TimeoutError):
                one.publish("rel.big", bytes(SMALL_PAYLOAD + 1))
                await one.flush()
            self.equal(f"errors of {one.name}", one.errors, ["-ERR 'Maximum Payload Violation'"])
            await one.close()
        await self._reload(lambda server: replace(server, max_payload=most.get(server.name, 0)))
        await asyncio.sleep(SOON / 2)
        clients = [await self.session(f"again-{name}", name, user="steady") for name in self._everyone()]
        for one in clients:
            one.publish("rel.big", bytes(SMALL_PAYLOAD + 1))
            await one.flush()
        await self._leave(clients)

    async def _tags(self, session: Session) -> None:
        """A stream is placed by tags that servers have got since."""
        clients = await self._clients()
        tags = {name: self.deployment.servers[name].tags for name in self._everyone()}
        placed = {"placement": {"tags": ["reload:yes"]}}
        self.equal("a stream without servers", await self._created(clients, "RELTAG", **placed), 10005)
        chosen = self.rng.choice(self.members)
        await self._reload(
            lambda one: replace(one, tags=(*one.tags, "reload:yes")) if one.name == chosen else one
        )  # fmt: skip
        await asyncio.sleep(SOON)
        self.equal("a stream with one", await self._created(clients, "RELTAG", **placed), 0)
        info = await self.ask(clients[0], "STREAM.INFO.RELTAG")
        self.equal("its server", info["cluster"]["leader"], chosen)
        await self.ask(clients[0], "STREAM.DELETE.RELTAG")
        await self._reload(lambda one: replace(one, tags=tags.get(one.name, one.tags)))
        await self._leave(clients)

    async def _refused(self, session: Session) -> None:
        """With one word that is wrong, or one that may not change, nothing of a configuration counts."""
        clients = await self._clients()
        both = replace(USUAL, users=("steady", "late"))
        for wrong in ("max_payload: many", "accounts {", "port: 4999", "nothing_of_ours: [", 'server_name: "another"'):
            old = {name: self.deployment.servers[name].config for name in self._everyone()}
            await self._reload(
                lambda one, wrong=wrong: replace(  # type: ignore[misc]
                    one, config=f"{one.config.replace(USUAL.text(), both.text(), 1)}\n{wrong}\n"
                )
            )
            await asyncio.sleep(1.0)
            await self._turned_away("late")
            for name, config in old.items():
                self.deployment.servers[name] = replace(self.deployment.servers[name], config=config)
        await self._renew(users=("steady", "late"))
        await asyncio.sleep(SOON / 2)
        await self._leave(await self._clients("late"))
        await self._renew()
        await self._leave(clients)
