"""Work of a start that is done after "Server is ready": modules and models that requests of this configuration need are
imported by a thread and built in small steps, so that neither requests nor the event loop wait for them."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence

from jetcluster.config.options import Options


async def import_pydantic(options: Options) -> None:
    """Imports pydantic before a node is ready, beside its waits for peers and disks: 0.1 s, all that a start allows."""
    if options.jetstream.enabled:
        await asyncio.to_thread(importlib.import_module, "pydantic.main")


async def warm_up(options: Options, more: Sequence[str] = ()) -> None:
    """Imports what requests need, the most frequent first and the modules `more` last."""
    if options.jetstream.enabled:
        from jetcluster.api.dispatch import load_endpoints

        await load_endpoints()
        await build_models()
    for name in (*modules_of(options), *more):
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
