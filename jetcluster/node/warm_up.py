"""What requests of this configuration will need and is not imported before "Server is ready": each costs tens of
milliseconds, which would not fit into a start. It is brought in by a thread right after the start, so that no request
has to pay for it and the event loop goes on in between."""

from __future__ import annotations

import asyncio
import importlib
import sys

from jetcluster.config.options import Options


async def warm_up(options: Options) -> None:
    for name in modules_of(options):
        if name not in sys.modules:
            await asyncio.to_thread(importlib.import_module, name)


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
    if options.system_account_name in (options.accounts or {}):
        found += ["jetcluster.monitor.statsz", "jetcluster.monitor.system_requests"]
    return found
