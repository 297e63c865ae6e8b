"""A mirror and sources of streams that a client pretends to have, which lies about them while there are faults: each
copy has all of it in the end, once, and nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.session import Msg
from tests.sim.cluster.judges import Copies
from tests.sim.cluster.pretender import Pretender
from tests.sim.cluster.workload import Workload, together

NAMES = ("FARA", "FARB", "FARC")
"""Streams that are pretended: one that has a mirror, and sources of one stream; the last gives it a consumer."""
GIVEN = {"name": "given", "deliver_subject": "far.given"}
ONE_SUBJECT = [{"src": "far.*.*.*", "dest": "far.copied"}]


class ForeignCopies(Workload):
    name = "foreign-copies"
    judges = (Copies,)
    promises = (
        "a mirror or source begins anew where its upstream says what it cannot, and has each of its messages once",
        "a source that is taken away and comes back goes on where it was if its upstream is the same stream",
    )

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        super().__init__(deployment, rng)
        self.lives: dict[str, list[dict[int, str]]] = {name: [{}] for name in NAMES}
        """By upstream what it had, before each time that it was made anew and since."""

    async def prepare(self) -> None:
        far = await self.session("far")
        self.far = {
            name: Pretender(far, Random(self.rng.getrandbits(64)), lambda: self.now, name, f"far.{name}")
            for name in NAMES
        }
        self.far["FARA"].may_be_restored = True
        self.far["FARA"].subject = "far.a.b.c"  # as deliveries have it but for its tokens; the copy has one for all
        self.far["FARB"].retention = self.rng.choice(["limits", "limits", "workqueue"])
        self.far["FARC"].retention = "workqueue"
        self.far["FARC"].give(**_given())
        self.admin = await self.session("admin")
        size = self.rng.choice([1, 3])
        mirror = self._link("FARA") | {"subject_transforms": ONE_SUBJECT}
        await self.create(self.admin, "FAR_MIRROR", num_replicas=size, mirror=mirror)
        self.config = await self.create(self.admin, "FAR_ALL", num_replicas=size, sources=self._sources())
        for far_stream in self.far.values():
            far_stream.lying = True

    def _link(self, name: str) -> dict[str, Any]:
        return {"name": name, "external": {"api": f"far.{name}", "deliver": f"far.D{name}"}}

    def _sources(self) -> list[dict[str, Any]]:
        return [self._link("FARB"), self._link("FARC") | {"consumer": GIVEN}]

    async def work(self) -> None:
        await together(*(self._write(name) for name in NAMES))

    async def _write(self, name: str) -> None:
        async for _ in self.turns(2.0):
            self._store(name, self.rng.choice([1, 1, 3, 20]))

    def _store(self, name: str, count: int) -> None:
        life = self.lives[name][-1]
        for _ in range(count):
            text = f"{name}-{len(self.lives[name])}-{len(life) + 1}"
            self.far[name].store(text)
            life[self.far[name].last] = text

    async def check(self) -> None:
        for name, far_stream in self.far.items():
            far_stream.lying = False
            self.count("lies", far_stream.counts.get("lies", 0))
            self._store(name, 2)
            far_stream.loses = True  # only heartbeats tell of it
        await self._look()
        await self._return()
        await self._look()
        for far_stream in self.far.values():
            far_stream.close()

    async def _return(self) -> None:
        """A source is taken away, and comes back: as it was, restored, or as another stream of its name."""
        config = (await self.insist("its configuration", lambda: self.admin.api("STREAM.INFO.FAR_ALL")))["config"]
        await self._update(config | {"sources": [one for one in config["sources"] if one["name"] != "FARB"]})
        far_stream, way = self.far["FARB"], self.rng.choice(["as it was", "restored", "anew"])
        self.count(f"comes back {way}")
        if way == "restored":
            far_stream.restored()
            far_stream.subject = await self._subject_of("FARB")
        elif way == "anew":
            before = far_stream.last
            far_stream.anew()
            self.lives["FARB"].append({})
            self._store("FARB", self.rng.choice([0, before]))  # others, some at the same sequences
        self._store("FARB", 3)
        await self._update(config)

    async def _update(self, config: dict[str, Any]) -> None:
        await self.insist("its links", lambda: self.admin.api("STREAM.UPDATE.FAR_ALL", config))

    async def _subject_of(self, name: str) -> str:
        """The subject that the newest message had there, as its copy tells."""
        found = await self.insist("what came last", lambda: self.contents(self.admin, "FAR_ALL"))
        origins = [found[seq].headers["Nats-Stream-Source"].split(" ") for seq in sorted(found)]
        return next(one[4] for one in reversed(origins) if one[0].startswith(name))

    async def _look(self) -> None:
        def mirror(where: str, contents: dict[int, Msg]) -> None:
            Copies.mirrored(where, self.lives["FARA"][0], _texts(contents))

        def everything(where: str, contents: dict[int, Msg]) -> None:
            texts = _texts(contents)
            lives = [life for name in ("FARB", "FARC") for life in self.lives[name]]
            Copies.sourced(where, lives, [texts[seq] for seq in sorted(texts)])

        total = sum(len(life) for name in ("FARB", "FARC") for life in self.lives[name])
        await self.everywhere("FAR_MIRROR", self.far["FARA"].last, mirror)
        await self.everywhere("FAR_ALL", total, everything)


def _given() -> dict[str, str]:
    return {"name": GIVEN["name"], "deliver": GIVEN["deliver_subject"]}


def _texts(contents: dict[int, Msg]) -> dict[int, str]:
    return {seq: msg.payload.decode() for seq, msg in contents.items()}
