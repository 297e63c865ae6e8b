"""The user of the system account in the cluster of `jetcluster up`: operators' commands need one.

Clients go on without a user: where only the system account has users, all others are of the account `$G`.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

USER: Final = "admin"
CONFIG: Final = """# Written by `jetcluster up` at each start.
accounts {{ $SYS {{ users: [ {{ user: {user}, password: "{password}" }} ] }} }}
"""


class SystemUser:
    """The files of the user in the folder of the cluster: part of the nodes' configuration, and a context of the `nats`
    tool."""

    def __init__(self, root: Path) -> None:
        self.config = root / "system.conf"
        self.context = root / "system.json"

    def write(self, urls: Sequence[str]) -> None:
        """Writes both files, with a new password that only this user of the machine can read."""
        password = secrets.token_urlsafe(16)
        _write(self.config, CONFIG.format(user=USER, password=password))
        context = {"description": "jetcluster up", "url": ",".join(urls), "user": USER, "password": password}
        _write(self.context, json.dumps(context, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # it may be readable for others
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
