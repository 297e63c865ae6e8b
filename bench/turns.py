"""Rounds of all contenders in turns: A B C, C B A, ..., a fresh cluster for each group of rows."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.contender import ALWAYS, Contender
from bench.machine import fdatasync_p50
from bench.profile import Profiler
from bench.row import Group, Measured, Measurement
from bench.samples import Samples
from bench.stand import Stand
from testkit.client import ClientError
from testkit.harness import HarnessError, ProcessCluster

FAILURES = (ClientError, HarnessError, OSError, TimeoutError, AssertionError, KeyError)
_PREPARED_WITHIN = 120.0
_ERROR_LENGTH = 300
Say = Callable[[str], None]
Chosen = Sequence[tuple[Group, Sequence[Measurement]]]


@dataclass(slots=True)
class Turns:
    samples: Samples
    chosen: Chosen
    contenders: Sequence[Contender]
    folder: Path
    """Stores go below it; each is removed after its turn."""
    say: Say
    profiler: Profiler | None = None

    async def run(self, rounds: int) -> None:
        """Measures what the samples lack of so many rounds."""
        for number in range(1, rounds + 1):
            order = list(self.contenders) if number % 2 else list(reversed(self.contenders))
            if not any(self._missing(number, contender, one) for _, each in self.chosen for contender in order
                       for one in each):  # fmt: skip
                continue
            self.samples.fsync_ms.append(fdatasync_p50(self.folder))
            self.samples.load.append(os.getloadavg()[0])
            for group, measurements in self.chosen:
                for contender in order:
                    missing = [one for one in measurements if self._missing(number, contender, one)]
                    if missing:
                        await self.turn(number, group, missing, contender)
                        self.samples.write()

    def _missing(self, number: int, contender: Contender, one: Measurement) -> bool:
        return any(not self.samples.has(number, contender.name, row) for row in _rows(one, contender))

    async def turn(self, number: int, group: Group, measurements: Sequence[Measurement], contender: Contender) -> None:
        """One group on one fresh cluster. What fails is a sample that says so, and does not end the run."""
        root = self.folder / f"{contender.name}-{number}"
        shutil.rmtree(root, ignore_errors=True)
        what = f"round {number}, {group.title}, {contender.name}"
        try:
            async with ProcessCluster(
                group.nodes, contender.server, root=root, config=contender.config, monitor=group.monitor
            ) as nodes:
                stand = Stand(contender, nodes, self.samples.seconds, root, profiler=self.profiler)
                failed = await self._prepared(group, stand)
                for one in measurements:
                    await self._measure(number, one, stand, what, failed)
        except FAILURES as error:
            for one in measurements:
                self._note(number, one, contender, _told(error), what)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    @staticmethod
    async def _prepared(group: Group, stand: Stand) -> str:
        """Why the group cannot be measured; "" when it can."""
        try:
            await stand.settle()
            if group.prepare is not None:
                await asyncio.wait_for(group.prepare(stand), _PREPARED_WITHIN)
        except FAILURES as error:
            return _told(error)
        return ""

    async def _measure(self, number: int, one: Measurement, stand: Stand, what: str, failed: str) -> None:
        if failed:
            self._note(number, one, stand.contender, failed, what)
            return
        try:
            found = await asyncio.wait_for(one.run(stand), one.within)
            if self.profiler is not None:
                await self.profiler.finish(one.rows[0].name)
        except FAILURES as error:
            if self.profiler is not None:
                self.profiler.drop()
            self._note(number, one, stand.contender, _told(error), what)
        else:
            self._note(number, one, stand.contender, found, what)

    def _note(
        self, number: int, one: Measurement, contender: Contender, found: dict[str, Measured] | str, what: str
    ) -> None:
        for row in _rows(one, contender):
            value = found if isinstance(found, str) else found[row]
            self.samples.add(number, contender.name, row, value)
            self.say(f"{what}: {row}: {value if isinstance(value, str) else f'{value.value:.6g}'}")


def _rows(one: Measurement, contender: Contender) -> list[str]:
    """Those that are measured of the contender: where fsync plays no part, only the peer's default."""
    return [row.name for row in one.rows if contender is not ALWAYS or row.durable]


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:_ERROR_LENGTH]
