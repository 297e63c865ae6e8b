"""The work of a start that is done after "Server is ready", since it would not fit into the start: modules and models
that requests of this configuration need. It is imported by a thread and built in small steps, so that no request has to
pay for it and the event loop goes on in between.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence

from jetcluster.config.options import Options


async def import_pydantic(options: Options) -> None:
    """Before a node is ready, beside its waits for peers and disks: 0.1 s, as much as the budget of a start allows."""
    if options.jetstream.enabled:
        await asyncio.to_thread(importlib.import_module, "pydantic.main")


async def warm_up(options: Options, more: Sequence[str] = ()) -> None:
    """The most frequent first; the modules `more` last."""
    if options.jetstream.enabled:
        from jetcluster.api.dispatch import load_endpoints

        await load_endpoints()
        await build_models()
    for name in (*modules_of(options), *more):
        if name not in sys.modules:
            await asyncio.to_thread(importlib.import_module, name)


async def build_models() -> None:
    """Builds the models of requests, one by one: a request that comes meanwhile builds its own and waits for no other.
    For the first one, which has no fields, pydantic imports and looks for more than all others take: that is done in a
    thread."""
    await asyncio.to_thread(_build_first)
    from jetcluster.model.base import models

    for model in models():
        model.model_rebuild()
        await asyncio.sleep(0)


def _build_first() -> None:
    from jetcluster.model.base import WireModel

    WireModel.model_rebuild()


def modules_of(options: Options) -> list[str]:
    """In the order in which they are imported."""
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
