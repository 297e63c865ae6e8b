"""`TlsOptions` -> `ssl.SSLContext`. Imported only when TLS is configured: `ssl` costs 10 ms of a cold start."""

from __future__ import annotations

import ssl
from pathlib import Path

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import TlsOptions


def server_context(tls: TlsOptions) -> ssl.SSLContext:
    """The context of the client listener. Raises `ConfigError` when a file is missing or unusable."""
    for path in (tls.cert_file, tls.key_file):
        if not Path(path).is_file():
            raise ConfigError(f"error parsing X509 certificate/key pair: open {path}: no such file or directory")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"error parsing X509 certificate/key pair: {error}") from error
    if tls.verify:
        context.verify_mode = ssl.CERT_REQUIRED
        if not tls.ca_file:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if tls.ca_file:
        try:
            context.load_verify_locations(tls.ca_file)
        except FileNotFoundError as error:
            raise ConfigError(f"error loading CA file: open {tls.ca_file}: no such file or directory") from error
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"failed to parse root ca certificate: {error}") from error
    return context
