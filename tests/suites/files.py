"""Certificates, keys and configurations of a suite's servers, made anew for each run."""

from __future__ import annotations

from pathlib import Path

from testkit.certificates import Authority
from tests.signer import ACCOUNT, OPERATOR, USER, Key

# nats-py's test of raw credentials carries a user of this account, so our operator signs the account.
NATS_PY_ACCOUNT = "AD7SEANS6BCBF6FHIB7SQ3UGJVPW53BXOALP75YXJBBXQL7EAFB6NJNA"
LIMITS = {
    "subs": -1,
    "conn": -1,
    "leaf": -1,
    "imports": -1,
    "exports": -1,
    "data": -1,
    "payload": -1,
    "wildcards": True,
}


def write(folder: Path) -> None:
    """All of them into `folder`, which exists and is empty."""
    _tls(folder)
    _keys(folder)
    _accounts(folder)


def _tls(folder: Path) -> None:
    authority = Authority(folder)
    authority.issue("client")
    tls = authority.tls("server", ", verify: true")
    (folder / "handshake_first.conf").write_text(f"{tls[:-1]}, handshake_first: true }}\n")
    (folder / "ws.conf").write_text('websocket { listen: "127.0.0.1:8080", no_tls: true }\n')
    (folder / "wss.conf").write_text(f'websocket {{ listen: "127.0.0.1:8081"\n {authority.tls("server")} }}\n')


def _keys(folder: Path) -> None:
    nkeys = folder / "nkeys"
    nkeys.mkdir()
    operator, account, user = Key(OPERATOR), Key(ACCOUNT), Key(USER)
    token = account.token(
        user, "foo-user", {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
    )
    (nkeys / "foo-user.nk").write_text(user.seed)
    (nkeys / "foo-user.jwt").write_text(token)
    (nkeys / "foo-user.creds").write_text(credentials(token, user.seed))
    # One that ends where the seed should be, and one with a seed that is none.
    (nkeys / "bad-user.creds").write_text(credentials(token, user.seed).partition("SEED-----\n")[0] + "SEED-----\n")
    (nkeys / "bad-user2.creds").write_text(credentials(token, "bad"))
    (folder / "nkeys.conf").write_text(
        f'authorization {{ users [ {{ nkey: {user.public}, permissions {{ subscribe {{ deny: "bar" }} }} }} ] }}\n'
    )
    stranger = Key(ACCOUNT)
    stranger.public = NATS_PY_ACCOUNT
    preload = {
        key.public: operator.token(key, name, {"type": "account", "limits": LIMITS})
        for name, key in (("suite", account), ("nats-py", stranger))
    }
    operator_token = operator.token(operator, "suite", {"type": "operator"})
    lines = "\n".join(f"  {public}: {token}" for public, token in preload.items())
    (folder / "operator.conf").write_text(
        f"operator: {operator_token}\nresolver: MEMORY\nresolver_preload: {{\n{lines}\n}}\n"
    )


def credentials(token: str, seed: str) -> str:
    """A .creds file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _accounts(folder: Path) -> None:
    (folder / "limits.conf").write_text(
        """jetstream { domain: test-domain, max_mem_store: 64MB, max_file_store: 32MB }
accounts {
  LIMITED {
    users: [ { user: limited, password: limited } ]
    jetstream {
      max_mem: 64MB, max_file: 32MB, max_streams: 10, max_consumers: 20, max_ack_pending: 100
      memory_max_stream_bytes: 2048, store_max_stream_bytes: 4096, max_stream_bytes: true
    }
  }
}
no_auth_user: limited
"""
    )
    (folder / "no_auth_user.conf").write_text(
        """authorization {
  users: [
    { user: foo, password: foo }
    { user: bar, password: bar, permissions { subscribe { deny: [foo] } } }
  ]
}
no_auth_user: foo
"""
    )
