"""Exam of restore points: `jetcluster backup` and `jetcluster restore` against the simulated cluster."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jetcluster.backup import plan
from jetcluster.backup.point import RestorePoint
from jetcluster.backup.restore_options import RestoreRefusedError
from jetcluster.backup.retention import NoSuchPointError, PointCatalog
from jetcluster.backup.run import NoSuchStreamError
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.errors import JetclusterError
from testkit.sim.deployment import Violation
from testkit.sim.session import ApiError, Session
from testkit.twins.backup_storage import DiedError
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.restore_points import Contents, Site, Stored, Unsuccessful, small_segments, standing, stored_of

NOT_FOUND, GONE = 10037, 10059
SEGMENT: Final = 700
"""Bytes after which a segment is full."""
STREAMS: Final[dict[str, dict[str, Any]]] = {
    "POINTED": {"subjects": ["pointed.>"], "description": "of every kind"},
    "KV_POINTED": {
        "subjects": ["$KV.POINTED.>"], "max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "discard": "new",
    },
    "POINTEDONE": {"subjects": ["pointedone.>"], "num_replicas": 1, "allow_direct": False, "storage": "memory"},
    "POINTEDWORK": {"subjects": ["pointedwork.>"], "max_msgs": 1000, "metadata": {"kept": "yes"}},
}  # fmt: skip
SUBJECTS: Final = {
    "POINTED": "pointed.", "KV_POINTED": "$KV.POINTED.", "POINTEDONE": "pointedone.", "POINTEDWORK": "pointedwork.",
}  # fmt: skip


class PointExam(Exam):
    name = "exam-points"
    weight = 0
    judges = (Exact,)
    promises = (
        "a restore point has each stream as it is: messages, holes, configuration, and where its consumers stand",
        "a run reads only what is new, leaves older points whole, and removes what none of the points needs",
        "what is damaged, or was left by a run that died, is told or found, and the next point is whole",
        "a restore makes streams as their point has them, once, also under another name, or refuses and changes none",
    )

    async def check(self) -> None:
        await self.examine(
            [
                self._follow, self._damaged, self._died, self._restored, self._resumed, self._renamed, self._refused
            ], 3
        )  # fmt: skip

    def site(self) -> Site:
        return Site("points", self.deployment.addresses(*self.members), self.loop.time, self.rng)

    # ---- streams

    async def make(self, session: Session, *names: str) -> None:
        for name in names:
            await self.create(session, name, **STREAMS[name])

    async def remove(self, session: Session, *names: str) -> None:
        for name in names:
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def change(self, session: Session, name: str, steps: int = 6) -> None:
        """A few steps of any history."""
        for _ in range(steps):
            what = self.rng.random()
            if what < 0.75:
                subject = SUBJECTS[name] + self.rng.choice("abcd")
                headers = {"Kind": str(self.rng.randrange(9)), "Two": ""} if self.rng.random() < 0.3 else None
                await session.js_publish(subject, self.rng.randbytes(self.rng.randrange(200)), headers)
            elif what < 0.95:
                state = (await self.ask(session, f"STREAM.INFO.{name}"))["state"]
                seq = self.rng.randint(max(state["first_seq"], 1), max(state["last_seq"], state["first_seq"], 1))
                try:
                    await session.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq, "no_erase": True})
                except ApiError:
                    continue  # there is none
            else:
                await self.ask(session, f"STREAM.PURGE.{name}", {"filter": SUBJECTS[name] + "d"})

    async def consumer(self, session: Session, stream: str, name: str) -> None:
        """A consumer that has acknowledged some of what it was delivered."""
        await self.create_consumer(session, stream, name, ack_wait=600_000_000_000)
        got = await self.take(session, stream, name, {"batch": 4, "no_wait": True})
        for msg in got:
            if not msg.status and self.rng.random() < 0.5:
                await session.request(msg.reply, b"+ACK")

    async def contents(self, session: Session, name: str) -> Contents:  # type: ignore[override]
        """A stream as its leader tells it, message by message."""
        info = await self.ask(session, f"STREAM.INFO.{name}")
        state = info["state"]
        messages: dict[int, Stored] = {}
        for seq in range(max(state["first_seq"], 1), state["last_seq"] + 1):
            try:
                messages[seq] = stored_of(await session.api(f"STREAM.MSG.GET.{name}", {"seq": seq}))
            except ApiError as error:
                self.equal(f"{name}: {seq}", error.err_code, NOT_FOUND)
        self.equal(f"{name}: messages", len(messages), state["messages"])
        listed = (await self.ask(session, f"CONSUMER.LIST.{name}"))["consumers"]
        consumers = {one["name"]: standing(one) for one in listed}
        config = {key: value for key, value in info["config"].items() if key != "metadata"}
        config["kept"] = (info["config"].get("metadata") or {}).get("kept")
        return Contents(config, (state["first_seq"], state["last_seq"]), messages, consumers)

    async def are(self, what: str, session: Session, wanted: dict[str, Contents]) -> None:
        for name, one in wanted.items():
            found = await self.contents(session, name)
            for field in Contents._fields:
                self.equal(f"{what}: {name}: {field}", getattr(found, field), getattr(one, field))

    async def all_of(self, session: Session, *names: str) -> dict[str, Contents]:
        return {name: await self.contents(session, name) for name in names}

    def holds(self, what: str, site: Site, point: RestorePoint, wanted: dict[str, Contents]) -> None:
        """The point has these streams, and nothing else."""
        self.equal(f"{what}: wrong in it", site.wrong(point), [])
        self.equal(f"{what}: streams", sorted(one.name for one in point.streams), sorted(wanted))
        for name, one in wanted.items():
            stream = point.stream(name)
            assert stream is not None
            self.equal(f"{what}: {name}", site.held(point, name), one.messages)
            state = stream.state
            self.equal(f"{what}: {name}: state", (state["messages"], state["last_seq"]),
                       (len(one.messages), one.ends[1]))  # fmt: skip
            self.equal(f"{what}: {name}: consumers", stream.consumers is not None, bool(one.consumers))

    async def refuses(self, what: str, asked: Awaitable[object], error: type[JetclusterError]) -> None:
        try:
            await asked
        except Unsuccessful as found:
            self.equal(what, type(found.error), error)
        else:
            raise Violation(f"{what}: it is not refused")

    # ---- parts

    async def _follow(self, session: Session) -> None:
        """Points that follow each other, each of its own moment; then all but the last two are removed."""
        names = self.rng.sample(sorted(STREAMS), 2)
        site, points, known = self.site(), [], {name: set[int]() for name in names}
        verify = self.rng.random() < 0.5
        await self.make(session, *names)
        with small_segments(SEGMENT):
            for number in range(4):
                for name in names:
                    await self.change(session, name, self.rng.randrange(9))
                now = await self.all_of(session, *names)
                point = await site.backup(*names, keep=2 if number == 3 else 0, verify=verify)
                told = {name: (len(one.messages.keys() - known[name]), len(one.messages)) for name, one in now.items()}
                self.equal(f"point {number}: read", site.new(), told)
                self.equal(f"point {number}: verified", point.verified, True if verify else None)
                known = {name: known[name] | one.messages.keys() for name, one in now.items()}
                points.append((point, now))
                for at, (older, then) in enumerate(points[-2:]):
                    self.holds(f"point {number}, {at}", site, older, then)
        self.has("kept", site, [point for point, _ in points[-2:]])
        await self.remove(session, *names)

    def has(self, what: str, site: Site, points: list[RestorePoint]) -> None:
        """The destination has these points, finds them by their times, and has the blobs that they need."""
        catalog = PointCatalog(site.storage)
        self.equal(f"{what}: points", catalog.names(), [one.name for one in points])
        self.equal(f"{what}: newest", catalog.newest(), points[-1].name)
        for at, one in enumerate(points):
            when = datetime.fromtimestamp(one.started // 1_000_000_000, UTC)
            for seconds, found in ((0, at), (30, at), (-30, at - 1)):
                text = (when + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
                try:
                    named = catalog.named(text)
                except NoSuchPointError:
                    named = ""
                self.equal(f"{what}: {text}", named, points[found].name if found >= 0 else "")
        blobs = sorted(path for path in site.storage.files if path.startswith("blobs/"))
        self.equal(f"{what}: blobs", blobs, sorted({blob.path for point in points for blob in point.blobs}))

    async def _damaged(self, session: Session) -> None:
        """A blob that rots, is cut off or goes is told, and the next point has all of it again."""
        name = self.rng.choice(sorted(STREAMS))
        site = self.site()
        await self.make(session, name)
        await self.change(session, name, 14)
        await self.consumer(session, name, "kept")
        now = await self.all_of(session, name)
        with small_segments(SEGMENT):
            point = await site.backup(name)
            for how in ("rots", "cut", "goes"):
                stream = point.stream(name)
                assert stream is not None
                path = self.rng.choice(stream.blobs).path
                data = site.storage.files.pop(path)
                if how == "rots":
                    at = self.rng.randrange(len(data))
                    site.storage.files[path] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                elif how == "cut":
                    site.storage.files[path] = data[:-1]
                self.equal(f"{path} {how}: told of", [one.partition(":")[0] for one in site.wrong(point)], [name])
                try:
                    await site.restore(point, streams=(name,), overwrite=True, anew=True)
                except Unsuccessful as found:
                    self.equal(f"{path} {how}: restored", type(found.error), DamagedBackupError)
                else:  # the stream is as in the backup, and what is damaged was not needed to know it
                    self.count("restored nothing")
                await self.are(f"{path} {how}", session, now)
                point = await site.backup(name, verify=True)
                self.holds(f"after {path} {how}", site, point, now)
        await self.remove(session, name)

    async def _died(self, session: Session) -> None:
        """Runs that die anywhere leave what was whole whole, and the next one makes its point."""
        names = self.rng.sample(sorted(STREAMS), 2)
        site = self.site()
        await self.make(session, *names)
        with small_segments(SEGMENT):
            before, then = None, None
            for number in range(3):
                for name in names:
                    await self.change(session, name, 8)
                now = await self.all_of(session, *names)
                if self.rng.random() < 0.5:
                    site.storage.die_at = self.rng.randint(2, 9)
                else:
                    site.storage.die_after = self.rng.randint(2, 9)
                try:
                    point = await site.backup(*names)
                except DiedError:
                    site.storage.revive()
                    self.count("died")
                    if before is not None and then is not None:
                        self.holds(f"run {number}: the point before", site, before, then)
                    point = await site.backup(*names)
                site.storage.revive()
                self.holds(f"run {number}", site, point, now)
                self.equal("left of runs", [one for one in site.storage.files if one.startswith(("partial", "lock"))],
                           [])  # fmt: skip
                before, then = point, now
        await self.remove(session, *names)

    async def _restored(self, session: Session) -> None:
        """Streams that are gone, or have changed, are as in the point again; those that are left are left."""
        names = self.rng.sample(sorted(STREAMS), 2)
        site = self.site()
        await self.make(session, *names)
        for name in names:
            await self.change(session, name, 12)
            await self.consumer(session, name, "kept")
        then = await self.all_of(session, *names)
        with small_segments(SEGMENT):
            point = await site.backup(*names)
        foretold = await site.restore(point, dry=True)
        self.equal("foretold", [one.was_there for one in foretold], [True, True])
        gone, changed = names
        await self.remove(session, gone)
        await session.js_publish(SUBJECTS[changed] + "new", b"behind the point")
        made = {one.name: one for one in await site.restore(point, overwrite=True)}
        self.equal("was there", {name: made[name].was_there for name in made}, dict.fromkeys(names, False))
        await self.are("restored", session, then)
        again = await site.restore(point, overwrite=True)
        self.equal("once more", [one.was_there for one in again], [True, True])
        await self.are("restored once", session, then)
        for name in names:
            await self._goes_on(session, name, then[name])
        await self.remove(session, *names)

    async def _goes_on(self, session: Session, name: str, then: Contents) -> None:
        """The restored stream stores behind its last sequence, and its consumer delivers what is not acknowledged."""
        ack = await session.js_publish(SUBJECTS[name] + "on", b"on")
        self.equal(f"{name}: goes on", ack["seq"], then.ends[1] + 1)
        there = then.consumers["kept"]
        got = [one for one in await self.take(session, name, "kept", {"batch": 99, "no_wait": True}) if not one.status]
        self.equal(f"{name}: delivered", len(got), there["num_pending"] + 1)

    async def _resumed(self, session: Session) -> None:
        """A restore that dies anywhere is ended by the next one, which leaves what is whole."""
        names = self.rng.sample(sorted(STREAMS), 2)
        site = self.site()
        await self.make(session, *names)
        for name in names:
            await self.change(session, name, 8)
            await self.consumer(session, name, "kept")
        then = await self.all_of(session, *names)
        with small_segments(SEGMENT):
            point = await site.backup(*names)
        await self.remove(session, *names)
        if self.rng.random() < 0.5:
            site.storage.die_at = self.rng.randint(1, 8)
        else:
            site.storage.die_after = self.rng.randint(1, 8)
        with suppress(DiedError):
            await site.restore(point)
        self.count("died" if site.storage.changes >= (site.storage.die_at or site.storage.die_after) else "lived")
        site.storage.revive()
        made = await site.restore(point)
        self.equal("made", [one.name for one in made], [one.name for one in plan.at_point(point.streams, ())])
        await self.are("resumed", session, then)
        self.equal("locks", [one for one in site.storage.files if ".lock" in one or one == "lock.json"], [])
        await self.remove(session, *names)

    async def _renamed(self, session: Session) -> None:
        """A stream under another name has the same messages, and a bucket's have subjects of the new one."""
        name = self.rng.choice(["POINTED", "KV_POINTED"])
        site = self.site()
        await self.make(session, name)
        await self.change(session, name, 12)
        then = await self.contents(session, name)
        with small_segments(SEGMENT):
            point = await site.backup(name)
        bucket = name == "KV_POINTED"
        other = "KV_OTHER" if bucket else "POINTEDOTHER"
        options: dict[str, Any] = {"no_limits": True, "replicas": 1}
        if not bucket:
            options["subjects"] = ("other.>",)
        await site.restore(point, streams=(name,), name=other, **options)
        found = await self.contents(session, other)
        wanted = {
            seq: (one[0].replace("$KV.POINTED.", "$KV.OTHER.") if bucket else one[0], *one[1:])
            for seq, one in then.messages.items()
        }
        self.equal("renamed: messages", found.messages, wanted)
        self.equal("renamed: ends", found.ends, then.ends)
        subjects = ["$KV.OTHER.>"] if bucket else ["other.>"]
        config = {**then.config, "name": other, "subjects": subjects, "num_replicas": 1, "max_msgs": -1}
        self.equal("renamed: configuration", found.config, config)
        await self.are("beside it", session, {name: then})
        await self.remove(session, name, other)

    async def _refused(self, session: Session) -> None:
        """A restore or a backup that is not permitted is refused, and nothing is changed."""
        name = "POINTED"
        site = self.site()
        await self.make(session, name)
        await self.change(session, name, 8)
        point = await site.backup(name)
        await session.js_publish(SUBJECTS[name] + "new", b"behind the point")
        now = await self.all_of(session, name)
        for what, options in (
            ("there already", {}),
            ("no such stream", {"streams": ("NONE",)}),
            ("subjects of another", {"streams": (name,), "name": "POINTEDOTHER"}),
            ("subjects without a name", {"streams": (name,), "subjects": ("other.>",)}),
            ("a name for all", {"name": "POINTEDOTHER"}),
            ("left and made anew", {"missing": True, "overwrite": True}),
            ("nothing is left", {"skip": (name,)}),
            ("no room", {"overwrite": True, "replicas": 9}),
        ):  # fmt: skip
            await self.refuses(what, site.restore(point, **options), RestoreRefusedError)
            await self.are(what, session, now)
        await self.refuses("a backup of no stream", site.backup(name, "NONE"), NoSuchStreamError)
        left = await site.restore(point, missing=True)
        self.equal("left", [(one.was_there, one.left) for one in left], [(True, True)])
        await self.are("left", session, now)
        self.equal("locks", [one for one in site.storage.files if one.endswith("lock.json") or ".lock" in one], [])
        await self.remove(session, name)
