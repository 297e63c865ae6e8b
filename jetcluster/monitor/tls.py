"""TLS as monitoring shows it: of listeners in /varz, of connections in /connz."""

from __future__ import annotations

from datetime import UTC
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from jetcluster.config.tls_options import TlsOptions, go_suite
from jetcluster.monitor.source import Json

if TYPE_CHECKING:
    import asyncio
    import ssl


def listener(tls: TlsOptions | None, loaded_ns: int, *, mutual: bool = False) -> Json:
    """TLS of a port with a block of its own. `mutual`: certificates are asked for also without `verify`."""
    if tls is None:
        return {}
    found: Json = {"tls_timeout": tls.timeout, "tls_required": True}
    if tls.verify or mutual:
        found["tls_verify"] = True
    return found | not_after(tls, loaded_ns)


def not_after(tls: TlsOptions | None, loaded_ns: int) -> Json:
    """When the certificate ends. It is read once for each time the configuration was loaded."""
    end = _not_after(tls.cert_file, loaded_ns) if tls is not None and tls.cert_file else ""
    return {"tls_cert_not_after": end} if end else {}


@lru_cache(maxsize=16)
def _not_after(file: str, _loaded_ns: int) -> str:
    from cryptography import x509

    try:
        with Path(file).open("rb") as pem:
            end = x509.load_pem_x509_certificate(pem.read()).not_valid_after_utc
    except (OSError, ValueError):
        return ""
    return end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def connection(transport: asyncio.Transport | None, *, first: bool, certificates: bool) -> Json:
    """`certificates`: with what the other end has shown."""
    session: ssl.SSLObject | None = transport.get_extra_info("ssl_object") if transport is not None else None
    if transport is None or session is None:
        return {}
    version, cipher = session.version(), session.cipher()
    if version is None or cipher is None:
        return {}
    found: Json = {"tls_version": version.removeprefix("TLSv"), "tls_cipher_suite": go_suite(cipher[0])}
    if certificates and (chain := _chain(transport)):
        found["tls_peer_certs"] = chain
    if first:
        found["tls_first"] = True
    return found


def _chain(transport: asyncio.Transport) -> list[Json]:
    from jetcluster.auth.certificates import CertificateError, chain_of

    try:
        chain = chain_of(transport)
    except CertificateError:
        return []
    return [{"subject": one.full_subject, "spki_sha256": one.key_digest, "cert_sha256": one.digest} for one in chain]
