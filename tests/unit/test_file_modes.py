"""Files of a server: what holds messages, keys and tokens is its own user's, the rest is as nats-server makes it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster import file_modes
from jetcluster.auth.resolver import DirectoryStore
from jetcluster.config.options import FULL, ResolverOptions
from jetcluster.config.runtime_files import write_pid_file, write_ports_file
from jetcluster.log_writer import open_log_file
from jetcluster.node import data_renewal
from jetcluster.node.rescue_survey import jetstream_folder
from tests.signer import Operator
from tests.unit.node.rig import running
from tests.unit.node.test_direct_get_permissions import ask
from tests.unit.server.wire import Wire, close_all


@pytest.fixture(autouse=True)
def _started_with_the_usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    file_modes.keep_private()
    yield
    file_modes.restore(before)


def modes(root: Path) -> dict[str, str]:
    """Modes of all paths that others may do something with."""
    found = {}
    for path in (root, *root.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077 or (path.is_dir() and mode != 0o700):
            found[str(path.relative_to(root))] = oct(mode)
    return found


async def busy(folder: Path, text: str) -> None:
    async with running(folder, text) as node:
        wire = await Wire.open(node.server.port)
        await wire.log_in()
        wire.inbox = "_INBOX.x"
        await wire.ask("SUB _INBOX.> 1")
        for name, subject in (("S", "s.>"), ("OBJ_b", "$OBJ.b.>")):
            answer = await ask(wire, f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [subject]})
            assert "error" not in json.loads(answer)
        for _ in range(50):
            assert "error" not in json.loads(await ask(wire, "s.x", "y" * 1000))
        assert node.jetstream is not None and node.jetstream._kv is not None
        node.jetstream._kv.flush_now()  # a table file
        await close_all()


async def test_all_of_a_store_is_its_own_users(tmp_path: Path) -> None:
    root = tmp_path / "a" / "store"
    text = f'jetstream {{ store_dir: "{root}" }}\npid_file: "{tmp_path}/pid"\nports_file_dir: "{tmp_path}"\n'
    await busy(tmp_path, text)
    names = {path.suffix for path in root.rglob("*") if path.is_file()}
    assert {".sst", ".log"} <= names
    assert modes(tmp_path / "a") == {}
    # A data store that is made anew, with the old one put aside.
    data_renewal.mark(jetstream_folder(root), "rot")
    kv, renewal = data_renewal.open_data(jetstream_folder(root), renewable=True, now=1e9)
    kv.close()
    assert renewal is not None and modes(jetstream_folder(root)) == {}


def test_accounts_of_a_resolver(tmp_path: Path) -> None:
    folder = tmp_path / "jwt"
    options = ResolverOptions(FULL, directory=str(folder))
    account = Operator().account("A")
    store = DirectoryStore(options)
    store.save(account.public, account.jwt)
    assert modes(folder) == {}
    (folder / "notes").write_text("of the operator's own")
    (folder / "notes").chmod(0o644)
    folder.chmod(0o755)
    assert DirectoryStore(options).fetch(account.public) == account.jwt
    assert modes(folder) == {".": "0o755", "notes": "0o644"}, "a folder that was there is not ours"


def test_what_others_look_for_is_theirs_to_read(tmp_path: Path) -> None:
    write_pid_file(str(tmp_path / "pid"), 1)
    ports = write_ports_file(str(tmp_path), {"nats": ["nats://h:1"]}, 1)
    os.close(open_log_file(str(tmp_path / "log")))
    found = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.iterdir()}
    assert found == {"pid": "0o644", ports.name: "0o644", "log": "0o640"}
    (tmp_path / "log").chmod(0o666)  # as somebody has made it: logrotate's `create`
    os.close(open_log_file(str(tmp_path / "log")))
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o666
