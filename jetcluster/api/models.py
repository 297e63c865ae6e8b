"""The models of requests' bodies by name (`models.PurgeRequest`), imported with pydantic when the first request needs
one: that takes 0.1 s and 10 MB, which a start and a node without such requests spare.

`api.dispatch` awaits `load` before a handler that uses them, so that the event loop does not wait.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetcluster.model.api import MsgDeleteRequest as MsgDeleteRequest
    from jetcluster.model.api import PageRequest as PageRequest
    from jetcluster.model.api import PeerRequest as PeerRequest
    from jetcluster.model.api import PurgeRequest as PurgeRequest
    from jetcluster.model.api import RescueRequest as RescueRequest
    from jetcluster.model.api import RestoreRequest as RestoreRequest
    from jetcluster.model.api import RestoreState as RestoreState
    from jetcluster.model.api import ServerMoveRequest as ServerMoveRequest
    from jetcluster.model.api import ServerRequest as ServerRequest
    from jetcluster.model.api import SnapshotRequest as SnapshotRequest
    from jetcluster.model.api import StepdownRequest as StepdownRequest
    from jetcluster.model.api import StreamConfigRequest as StreamConfigRequest
    from jetcluster.model.api import StreamInfoRequest as StreamInfoRequest
    from jetcluster.model.base import check_bounds as check_bounds
    from jetcluster.model.consumer import ConsumerConfig as ConsumerConfig
    from jetcluster.model.consumer import ConsumerCreateRequest as ConsumerCreateRequest
    from jetcluster.model.consumer import ConsumerPauseRequest as ConsumerPauseRequest
    from jetcluster.model.consumer import ConsumerResetRequest as ConsumerResetRequest
    from jetcluster.model.consumer import ConsumerUnpinRequest as ConsumerUnpinRequest
    from jetcluster.model.pedantic import check_pedantic as check_pedantic
    from jetcluster.model.stream import StreamConfig as StreamConfig
else:

    def __getattr__(name: str) -> object:
        _import()
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(name) from None


_loaded: list[bool] = []


async def load() -> None:
    """Imports the models in a thread, unless they are there."""
    if not _loaded:
        await asyncio.to_thread(_import)


def _import() -> None:
    if _loaded:
        return
    from jetcluster.model import api, base, consumer, pedantic, stream

    own = vars(sys.modules[__name__])
    for module in (base, pedantic, stream, consumer, api):
        own.update({name: value for name, value in vars(module).items() if name[0] != "_" and name not in own})
    _loaded.append(True)
