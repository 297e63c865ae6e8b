"""Work of a start that is done after "Server is ready": modules and models that requests of this configuration need are
imported by a thread and built in small steps, so that neither requests nor the event loop wait for them."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence

from jetcluster.config.options import Options

PAUSE_SECONDS = 0.1
"""Time after the first client's arrival in which the loop is its own; a request that needs the models loads them."""

LATE = (
    "jetcluster.mirror.origin", "jetcluster.mirror.stall", "jetcluster.consumer.owner.key_order",
    "jetcluster.consumer.owner.letters", "jetcluster.stream.read.id_search",
    "jetcluster.stream.apply.rollups",
)  # fmt: skip
"""Modules of mirrors, of rollups, and of consumers with order per key or dead letters."""


async def warm_up(options: Options, visited: asyncio.Event, more: Sequence[str] = ()) -> None:
    """Imports what requests need: what the first ones and logins need at once, the rest once a client has come
    (`visited`), and the modules `more` last. A node without clients spares 15 MB."""
    if options.jetstream.enabled:
        from jetcluster.api.dispatch import load_endpoints

        await load_endpoints()
    await import_all(modules_of(options))
    await visited.wait()
    await asyncio.sleep(PAUSE_SECONDS)
    if options.jetstream.enabled:
        from jetcluster.api import models

        await models.load()
        await import_all(LATE)
        await build_models()
    await import_all(more)


async def import_all(names: Sequence[str]) -> None:
    for name in names:
        if name not in sys.modules:
            await asyncio.to_thread(importlib.import_module, name)


async def build_models() -> None:
    """Builds the models of requests one by one; a request meanwhile builds its own and waits for no other. The first
    one, which has no fields, makes pydantic import and inspect more than all others, so a thread does that."""
    await asyncio.to_thread(_build_first)
    from jetcluster.model.base import models

    for model in models():
        model.model_rebuild()
        await asyncio.sleep(0)


def _build_first() -> None:
    from jetcluster.model.base import WireModel

    WireModel.model_rebuild()


def modules_of(options: Options) -> list[str]:
    """Returns the modules in the order in which they are imported."""
    found: list[str] = []
    users = options.users_by_name().values()
    blocks = (options.tls, options.websocket.tls, options.leafnodes.tls, options.cluster.tls)
    secrets = [user.password for user in users] + [options.authorization.password, options.authorization.token]
    if any(secret.startswith("$2") for secret in secrets):
        found.append("bcrypt")
    if options.operator.is_on or any(user.nkey for user in users):
        found.append("cryptography.hazmat.primitives.asymmetric.ed25519")
    if any(blocks):
        found.append("jetcluster.auth.certificates")
    return found
