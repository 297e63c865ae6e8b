"""Contexts of leaf links."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import LeafOptions, LeafRemoteOptions
from jetcluster.config.tls_options import TlsOptions
from jetcluster.server.leaf.tls import LeafTls
from testkit.certificates import Authority


def test_contexts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("hub")
    plain = LeafRemoteOptions(urls=["tls://h"])
    own = LeafRemoteOptions(urls=["tls://h"], tls=TlsOptions(str(cert), str(key), str(authority.file)))
    tls = LeafTls(LeafOptions(tls=own.tls, remotes=[plain, own]))
    assert tls.accepting is not None
    assert tls.connecting(own) is tls.connecting(own) is not tls.connecting(plain)
    assert tls.connecting(plain).verify_mode == ssl.CERT_REQUIRED
    assert LeafTls(LeafOptions(remotes=[plain])).accepting is None
    tls.renew()
    cert.write_text("rotten")
    with pytest.raises(ConfigError, match="X509 certificate/key pair"):
        tls.renew()
