"""Keys and tokens of the control plane, made at each start: the API server's, service accounts', the admin's."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from testkit.certificates import Authority
from tests.kubernetes.plane.folders import API_SERVICE, HOST, PORT

NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1", HOST, API_SERVICE)


class Credentials:
    """Files below a folder: `ca`, `certificate` and `key` of the API server, `accounts_key`, `tokens`, `kubeconfig`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        authority = Authority(folder)
        self.ca = authority.file
        self.certificate, self.key = authority.issue("api-server", NAMES)
        self.accounts_key = folder / "accounts.key"
        self.tokens = folder / "tokens.csv"
        self.kubeconfig = folder / "kubeconfig"
        key = rsa.generate_private_key(65537, 2048)
        self.accounts_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        self.token = secrets.token_hex(16)
        self.tokens.write_text(f"{self.token},admin,admin,system:masters\n")
        cluster = {"server": f"https://127.0.0.1:{PORT}", "certificate-authority": str(self.ca)}
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "plane",
                    "clusters": [{"name": "plane", "cluster": cluster}],
                    "users": [{"name": "admin", "user": {"token": self.token}}],
                    "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "admin"}}],
                }
            )
        )  # fmt: skip
