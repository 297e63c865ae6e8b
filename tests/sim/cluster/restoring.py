"""An exam that restores archives: chunk by chunk, as clients do, to the end or to the error."""

from __future__ import annotations

import json
from typing import Any, Final

from testkit.sim.session import ApiError, Session
from tests.sim.cluster.exam import Exam

GONE: Final = 10059
CHUNK: Final = 60_000
SECONDS: Final = 10.0
"""Seconds within which a chunk is answered."""


class RestoringExam(Exam):
    restores: str
    """Name of the stream."""

    async def restored(
        self, session: Session, sent: bytes, wish: dict[str, Any] | None = None, chunk: int = CHUNK
    ) -> int:
        """Code of the error with which it ends, 0 for none."""
        deliver = (await self.ask(session, f"STREAM.RESTORE.{self.restores}", wish))["deliver_subject"]
        for at in range(0, len(sent), chunk):
            if code := await self.taken(session, deliver, sent[at : at + chunk]):
                return code
        return await self.taken(session, deliver, b"")

    async def taken(self, session: Session, deliver: str, chunk: bytes) -> int:
        """The same for one chunk; an empty one ends the archive."""
        said = (await session.request(deliver, chunk, seconds=SECONDS)).payload
        answer = json.loads(said) if said else {}
        return int(answer["error"]["err_code"]) if "error" in answer else 0

    async def is_gone(self, session: Session) -> bool:
        try:
            await session.api(f"STREAM.INFO.{self.restores}")
        except ApiError as error:
            return error.err_code == GONE
        return False
