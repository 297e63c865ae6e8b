"""`TlsOptions` -> `ssl.SSLContext`, and the TLS alert that a failed handshake sends.

The module is imported only when TLS is configured: `ssl` costs 10 ms of a cold start.

OpenSSL leaves the alert of a failed handshake in the outgoing buffer, and asyncio and uvloop close the connection
without sending it: the other end would see the end of its connection and not "bad certificate". The listener therefore
names the socket of a handshake (`alerts_on`), and the alert is written there before the failure is raised.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from jetcluster.config.lexer import ConfigError
from jetcluster.config.tls_options import CURVES, TlsOptions, openssl_suites

GOODBYE_SECONDS = 1.0
"""Seconds in which the other end must close its connection after an alert."""
CHUNK_BYTES = 65536

_accepted: ContextVar[socket.socket | None] = ContextVar("accepted", default=None)
"""The socket of the handshake; transports run their callbacks in the context in which they were made."""


class AlertingObject(ssl.SSLObject):
    """An SSLObject that sends the alert of a failed handshake."""

    outgoing: ssl.MemoryBIO | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            connection = _accepted.get()
            if connection is not None and self.outgoing is not None:
                _send(connection, self.outgoing.read())
            raise


class AlertingContext(ssl.SSLContext):
    """A context of `AlertingObject`s."""

    sslobject_class = AlertingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        if isinstance(made, AlertingObject):
            made.outgoing = outgoing
        return made


@contextmanager
def alerts_on(connection: socket.socket) -> Iterator[socket.socket]:
    """Sends alerts of the transports made inside to this connection. Yields a duplicate of the socket for
    `say_goodbye`, because the transport closes its own."""
    spare = connection.dup()
    token = _accepted.set(spare)
    try:
        yield spare
    finally:
        _accepted.reset(token)
        spare.close()


async def say_goodbye(connection: socket.socket) -> None:
    """Reads the rest of the connection after an alert. Closing a socket with unread bytes resets the connection, and
    the other end may then never see the alert."""
    loop = asyncio.get_running_loop()
    try:
        connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(GOODBYE_SECONDS):
            while await loop.sock_recv(connection, CHUNK_BYTES):
                pass
    except (OSError, TimeoutError):
        pass


def _send(connection: socket.socket, alert: bytes) -> None:
    try:
        connection.send(alert)  # a few bytes into an empty buffer: all or nothing
    except OSError:
        pass


def server_context(tls: TlsOptions, *, mutual: bool = False) -> ssl.SSLContext:
    """Returns a context for the accepting end; `mutual` requires the other end's certificate even without `verify`.
    Raises ConfigError when a file is missing or unusable."""
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # TLS 1.2: it costs only this end
    _set_rules(context, tls)
    load_certificate(context, tls)
    if tls.verify or mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    elif tls.verify_optional:
        context.verify_mode = ssl.CERT_OPTIONAL
    _load_authorities(context, tls, ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(tls: TlsOptions) -> ssl.SSLContext:
    """Returns a context for the connecting end, with a certificate if one is configured. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_rules(context, tls)
    if tls.cert_file:
        load_certificate(context, tls)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load_authorities(context, tls, ssl.Purpose.SERVER_AUTH)
    return context


def load_certificate(context: ssl.SSLContext, tls: TlsOptions) -> None:
    """Loads the certificate into a new context, or anew into one in use, for its later handshakes. Raises
    ConfigError."""
    for path in (tls.cert_file, tls.key_file):
        if not Path(path).is_file():
            raise ConfigError(f"error parsing X509 certificate/key pair: open {path}: no such file or directory")

    def no_password() -> str:
        raise ConfigError(f"error parsing X509 certificate/key pair: the key in {tls.key_file} is encrypted")

    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, no_password)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"error parsing X509 certificate/key pair: {error}") from error


def _set_rules(context: ssl.SSLContext, tls: TlsOptions) -> None:
    """Raises ConfigError."""
    newest = tls.min_version == "1.3"
    # As in Go, every certificate in ca_file is trusted, self-signed or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        if tls.cipher_suites:
            suites = openssl_suites(tls.cipher_suites)
            newest = newest or not suites
            if suites:
                context.set_ciphers(suites)
        if tls.curve_preferences:
            context.set_ecdh_curve(CURVES[tls.curve_preferences[0]])
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"error parsing tls config: this machine's TLS library has none of these: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if newest else ssl.TLSVersion.TLSv1_2


def _load_authorities(context: ssl.SSLContext, tls: TlsOptions, purpose: ssl.Purpose) -> None:
    if not tls.ca_file:
        if context.verify_mode != ssl.CERT_NONE:
            context.load_default_certs(purpose)
        return
    try:
        context.load_verify_locations(tls.ca_file)
    except FileNotFoundError as error:
        raise ConfigError(f"error loading CA file: open {tls.ca_file}: no such file or directory") from error
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"failed to parse root ca certificate: {error}") from error


def name_to_check(host: str, configured: Sequence[str]) -> str:
    """Returns the name that the certificate of `host` must have. Servers advertise others by their addresses, which
    certificates seldom have: for an address it is the first name among the configured hosts, as in nats-server."""
    if not _is_address(host):
        return host
    return next((other for other in configured if not _is_address(other)), host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def handshake_failure(error: Exception) -> str:
    """Returns the reason of a failed handshake, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the other end's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower().replace("ssl/tls alert", "sslv3 alert")
        return _WORDS.get(reason, reason)
    if isinstance(error, TimeoutError):
        return "not completed in time"
    return str(error) or "the other end closed the connection"


_WORDS = {
    "peer did not return a certificate": "the other end shows no certificate",
    "tlsv13 alert certificate required": "the other end wants a certificate of this one",
    "tlsv1 alert unknown ca": "the other end does not know the authority of this one's certificate",
    "sslv3 alert bad certificate": "the other end does not accept this one's certificate; is it over?",
    "sslv3 alert certificate unknown": "the other end does not accept this one's certificate",
    "sslv3 alert certificate expired": "the other end says that this one's certificate is over",
    "wrong version number": "the other end does not speak TLS",
    "http request": "the other end does not speak TLS",
    "https proxy request": "the other end does not speak TLS",
}
