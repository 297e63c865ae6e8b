"""TLS errors in words for the log."""

from __future__ import annotations

import ssl

from jetcluster.config.tls import handshake_failure


def test_words_for_the_log() -> None:
    assert handshake_failure(ConnectionResetError()) == "the other end closed the connection"
    assert handshake_failure(TimeoutError()) == "not completed in time"
    error = ssl.SSLCertVerificationError()
    error.verify_message = "certificate has expired"
    assert handshake_failure(error) == "the other end's certificate is refused: certificate has expired"
