"""A web server that knows the accounts: http and https, and what goes wrong with it."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from jetcluster.auth.resolver import AccountStoreError, DirectoryStore, UrlStore
from jetcluster.config.options import URL, ResolverOptions
from jetcluster.config.tls_options import TlsOptions
from testkit.certificates import Authority
from tests.signer import Operator

ACCOUNT = Operator().account("A")
SEEN: list[str] = []
"""Authorization headers that the web server was sent."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = {"/accounts/": "", f"/accounts/{ACCOUNT.public}": ACCOUNT.jwt}
        SEEN.append(self.headers.get("Authorization", ""))
        body = known.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web(context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def store(port: int, scheme: str = "http", tls: TlsOptions | None = None) -> UrlStore:
    return UrlStore(ResolverOptions(URL, url=f"{scheme}://u:secret@127.0.0.1:{port}/accounts/", timeout=5.0), tls)


def test_http() -> None:
    with web() as port:
        options = ResolverOptions(URL, url=f"http://127.0.0.1:{port}/accounts/", timeout=5.0)
        found = UrlStore(options)
        assert found.ask("") == ""
        assert found.ask(ACCOUNT.public) == ACCOUNT.jwt
        assert SEEN[-1] == ""
        assert store(port).ask("") == ""
        assert SEEN[-1] == "Basic dTpzZWNyZXQ="
        with pytest.raises(OSError, match=r"could not fetch .*404"):
            found.ask(Operator().account("B").public)
    with pytest.raises(OSError, match="could not fetch"):
        found.ask("")


def test_what_was_asked_for_is_kept() -> None:
    found = store(1)
    assert found.save(ACCOUNT.public, ACCOUNT.jwt)
    assert not found.save_if_newer(ACCOUNT.public, ACCOUNT.jwt)
    assert dict(found.all()) == {ACCOUNT.public: ACCOUNT.jwt}
    assert found.delete(ACCOUNT.public)
    assert not found.delete(ACCOUNT.public)
    assert found.digest == bytes(32)
    with pytest.raises(AccountStoreError, match="invalid public key"):
        found.save("../../etc/passwd", ACCOUNT.jwt)


def test_passwords_of_the_address_are_not_shown() -> None:
    with pytest.raises(OSError, match="could not fetch") as error:
        store(1).ask("")
    assert "secret" not in str(error.value)


def test_https_with_authorities_of_ones_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with web(context) as port:
        options = ResolverOptions(URL, url=f"https://127.0.0.1:{port}/accounts/", timeout=5.0)
        assert UrlStore(options, TlsOptions(ca_file=str(authority.file))).ask(ACCOUNT.public) == ACCOUNT.jwt
        with pytest.raises(OSError, match=r"(?i)certificate"):
            UrlStore(options).ask(ACCOUNT.public)


def test_what_was_revoked_does_not_come_back_when_the_power_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the file before nor its name is left on the disk once `save` and `delete` have returned."""
    operator = Operator()
    account = operator.account("A")
    kept = DirectoryStore(ResolverOptions("full", str(tmp_path), allow_delete=True))
    looks: list[tuple[str, list[str]]] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        looks.append((path.name, sorted(one.name for one in tmp_path.iterdir())))

    monkeypatch.setattr("os.fsync", fsync)
    assert kept.save(account.public, account.jwt)
    assert looks == [
        (f"{account.public}.tmp", [f"{account.public}.tmp"]),
        (tmp_path.name, [f"{account.public}.jwt"]),
    ]
    looks.clear()
    assert kept.delete(account.public)
    assert looks == [(tmp_path.name, [f"{account.public}.jwt.deleted"])]


def test_what_else_lies_in_the_folder(tmp_path: Path) -> None:
    """Links to nothing, folders, pipes, noise and files without end: none of them keeps a server from its accounts."""
    operator = Operator()
    account, *others = [operator.account(name) for name in "ABCDEFG"]
    options = ResolverOptions("full", str(tmp_path))
    DirectoryStore(options).save(account.public, account.jwt)
    names = [tmp_path / f"{other.public}.jwt" for other in others]
    names[0].symlink_to(tmp_path / "nowhere")
    names[1].mkdir()
    os.mkfifo(names[2])
    names[3].write_bytes(b"\xff" * 100)
    with names[4].open("wb") as file:
        file.truncate(1 << 40)
    names[5].symlink_to("/dev/zero")
    (tmp_path / "notes.jwt").write_text("of the operator's own")
    store = DirectoryStore(options)
    assert store.accounts() == sorted([account.public, others[3].public])
    assert dict(store.all()) == {account.public: account.jwt}
    assert store.fetch(others[4].public) is None


@pytest.mark.parametrize("change", ["saved", "deleted and saved"])
def test_a_look_does_not_undo_what_another_thread_does_meanwhile(tmp_path: Path, change: str) -> None:
    account = Operator().account("A")
    options = ResolverOptions("full", str(tmp_path), allow_delete=True)
    DirectoryStore(options).save(account.public, "old")

    class Interrupted(DirectoryStore):
        looking = True

        def _path(self, account: str) -> Path:
            found = super()._path(account)
            if self.looking:  # by the time that the file is opened, something has changed
                self.looking = False
                if change == "deleted and saved":
                    self.delete(account)
                    found = tmp_path / "gone"  # the reader looks in between
                self.save(account, "new")
            return found

    store = Interrupted(options)
    store.fetch(account.public)
    again = DirectoryStore(options)
    assert (store.accounts(), store.digest) == (again.accounts(), again.digest)
