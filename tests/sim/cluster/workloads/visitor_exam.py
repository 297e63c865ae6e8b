"""Exam of visitors at the port of servers: each says one thing that no server says, or says that it is one that it is
not. It is sent away, and nobody takes notice of what it said."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any, Final

from jetcluster.mesh.auth import NONCE_BYTES, Greeting, Handshake, Reason, RouteCredentials, derive_key, encode_refused
from jetcluster.mesh.frames import Kind, frame
from testkit.sim.layout import ROUTE_PORT, SECRET
from testkit.sim.machine import Machine
from testkit.sim.plain_tls import of_client
from testkit.sim.session import Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.strangers import Stranger

PEER, BOOT, NAME = "00000001", "00000002", "n9"
"""The ids and the name that they give."""
STAYS: Final = 15.0
"""Seconds within which one is sent away."""
VISITS: Final = 14
"""Visitors of a part."""
AT_VERSION, AT_FLAGS = 6, 7
"""Places in a greeting."""
Answer = Callable[[int, bytes], bytes]
Visit = tuple[str, Machine, list[bytes], Answer]
"""A visitor, the server that it comes to, what it says, and the answer."""
SIGNATURE: Final = "00" * 64


def says_nothing(kind: int, body: bytes) -> bytes:
    return b""


def _itself(who: Stranger) -> Stranger:
    return who


class VisitorExam(Exam):
    name = "exam-visitors"
    weight = 0
    judges = (Exact,)
    promises = (
        "whoever greets servers in a way that no server does is sent away, and so is who has no key or another's name",
        "what one says who is no server changes nothing: no server leaves, and none is known that is not there",
    )

    async def check(self) -> None:
        await self.examine([self._greetings, self._infos, self._reports], 3)

    def _target(self) -> Machine:
        return self.deployment.machines[self.rng.choice([name for name in self.members if self._cluster(name)])]

    def _cluster(self, name: str) -> str:
        return self.deployment.servers[name].cluster

    async def _tour(self, visits: list[Visit]) -> None:
        """All of them at a time, as many as there are; then all is as before."""
        before = self._links()
        came = []
        for what, machine, first, answer in self.rng.sample(visits, min(VISITS, len(visits))):
            self.deployment.strangers[machine.name] = self.deployment.strangers.get(machine.name, 0) + 1
            who = Stranger(first, answer)
            address = self.deployment.servers[machine.name].ip
            await asyncio.get_running_loop().create_connection(
                functools.partial(_itself, who), address, ROUTE_PORT, ssl=of_client()
            )
            came.append((what, who))
            await asyncio.sleep(self.rng.choice([0.0, 0.5]))
        end = self.now + STAYS
        while self.now < end and not all(who.gone for _, who in came):
            await asyncio.sleep(0.1)
        self.equal("who stays", [what for what, who in came if not who.gone], [])
        self.equal("what went wrong", [what for what, who in came if who.error is not None], [])
        await self.until("all servers are linked as before", self._as_before(before), 10.0)

    def _as_before(self, before: dict[str, list[str]]) -> Any:
        async def same() -> bool:
            return self._links() == before

        return same

    def _links(self) -> dict[str, list[str]]:
        """Servers that each one has a link to."""
        found = {machine.name: jetstream_of(machine) for machine in self.deployment.running}
        return {name: sorted(one.network.mesh.peers) for name, one in found.items() if one is not None}

    def _greeting(self, machine: Machine, **fields: Any) -> Greeting:
        nonce = self.rng.randbytes(NONCE_BYTES)
        greeting = Greeting(PEER, BOOT, NAME, self._cluster(machine.name), nonce, authorization=True)
        return dataclasses.replace(greeting, **fields)

    def _server(self, greeting: Greeting, then: Callable[[Handshake], bytes]) -> tuple[list[bytes], Answer]:
        """One with the right secret, that says this once it is let in."""
        key = derive_key(greeting.cluster, RouteCredentials(SECRET, SECRET))
        handshake = Handshake(greeting, key, dialer=True)

        def answer(kind: int, body: bytes) -> bytes:
            if handshake.done:
                return b""
            said = handshake.receive(kind, body)
            return said + then(handshake) if handshake.done else said

        return [handshake.start()], answer

    async def _greetings(self, session: Session) -> None:
        """Greetings that are damaged, or of somebody else."""
        machine = self._target()
        jetstream = jetstream_of(machine)
        assert jetstream is not None
        me = jetstream.network.mesh.me
        whole = self._greeting(machine).encode()
        bodies = {
            "another version": whole[:AT_VERSION] + b"\x63" + whole[AT_VERSION + 1 :],
            "a flag that is none": whole[:AT_FLAGS] + b"\x09" + whole[AT_FLAGS + 1 :],
            "too short": whole[:20],
            "too long": whole + b"x",
            "no text": whole[:-1] + b"\xff",
            "a name that is none": self._greeting(machine, name="a\nb").encode(),
            "an id that is none": self._greeting(machine, peer_id="????????").encode(),
            "itself": self._greeting(machine, peer_id=me.peer_id, boot_id=me.boot_id).encode(),
            "its id": self._greeting(machine, peer_id=me.peer_id).encode(),
            "another cluster": self._greeting(machine, cluster="else").encode(),
            "somebody without a secret": self._greeting(machine, authorization=False).encode(),
            "nothing": b"",
            "something else": b"GET / HTTP/1.1",
        }
        visits: list[Visit] = [
            (what, machine, [frame(Kind.HELLO, body)], says_nothing) for what, body in bodies.items()
        ]
        hello = frame(Kind.HELLO, whole)
        visits += [
            ("a challenge first", machine, [frame(Kind.CHALLENGE, whole)], says_nothing),
            ("twice", machine, [hello] * 2, says_nothing),
            ("a wrong proof", machine, [hello], lambda kind, body: frame(Kind.PROOF, b"x" * 32)),
            ("a refusal of no kind", machine, [hello], lambda kind, body: frame(Kind.REFUSED, b"")),
            ("a refusal of another", machine, [hello], lambda kind, body: frame(Kind.REFUSED, b"\xff")),
            ("a refusal", machine, [hello], lambda kind, body: frame(Kind.REFUSED, b"\x01no")),
        ]
        await self._tour(visits)

    async def _infos(self, session: Session) -> None:
        """With the right secret: what a server says of itself that it is not."""
        machine = self._target()
        other = self.deployment.machines[self.rng.choice([name for name in self.members if name != machine.name])]
        jetstream = jetstream_of(other)
        assert jetstream is not None
        its = jetstream.network.mesh.me
        own = {"peer_id": PEER, "boot_id": BOOT, "name": NAME, "cluster_url": "10.0.0.9:6222",
               "client_url": "10.0.0.9:4222", "tags": [], "jetstream": True}  # fmt: skip
        key = its.key
        wrong: dict[str, dict[str, Any]] = {
            "another id": {"peer_id": "00000003"},
            "another name": {"name": "n8"},
            "no address": {"cluster_url": "nowhere"},
            "a key without a proof": {"key": key},
            "a key and a wrong proof": {"key": key, "signature": SIGNATURE},
            "a proof that is none": {"key": key, "signature": "x"},
            "a short proof": {"key": key, "signature": "00"},
            "addresses that are none": {"key": key, "signature": SIGNATURE, "at": 7},
            "another cluster": {"cluster_id": "ELSE"},
        }
        visits: list[Visit] = []
        for what, fields in wrong.items():
            body = json.dumps(own | fields).encode()
            visits.append((what, machine, *self._server(self._greeting(machine), self._says(frame(Kind.INFO, body)))))
        as_other = self._greeting(machine, peer_id=its.peer_id)
        body = json.dumps(own | {"peer_id": its.peer_id, "key": key, "signature": SIGNATURE}).encode()
        visits.append(("another's key", machine, *self._server(as_other, self._says(frame(Kind.INFO, body)))))
        named = self._greeting(machine, name=other.name)
        visits.append(("another's name", machine, *self._server(named, self._says(b""))))
        await self._tour(visits)

    def _says(self, said: bytes) -> Callable[[Handshake], bytes]:
        return lambda handshake: said

    async def _reports(self, session: Session) -> None:
        """A visitor that says a server was left out is not believed without the key of one that votes."""
        machine = self._target()
        names = [name for name in self.members if self._cluster(name) == self._cluster(machine.name)]
        visits: list[Visit] = []
        for name in names:
            jetstream = jetstream_of(self.deployment.machines[name])
            peers = {PEER, *([jetstream.network.me] if jetstream is not None and name != machine.name else [])}
            for peer in sorted(peers):
                for signature in (b"", b"x" * 64):
                    said = encode_refused(Reason.LEFT_OUT, "7", signature)
                    greeting = self._greeting(machine, peer_id=peer)
                    what = f"{peer} with {len(signature)} bytes"
                    visits.append((what, machine, *self._server(greeting, self._says(said))))
        await self._tour(visits)
        own = await self.session("after", machine.name)
        await self.ask(own, "STREAM.NAMES")
        await own.close()
