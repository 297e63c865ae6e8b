"""The ciphers are the standard ones: test vectors of their RFCs."""

from __future__ import annotations

from jetcluster.sealing.ciphers import AES, CHACHAPOLY, aead, derive, siv


def test_chacha20_poly1305_as_rfc_8439() -> None:
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    text = b"Ladies and Gentlemen of the class of '99: "
    text += b"If I could offer you only one tip for the future, sunscreen would be it."
    sealed = aead(CHACHAPOLY, key).encrypt(nonce, text, bytes.fromhex("50515253c0c1c2c3c4c5c6c7"))
    assert sealed[:8].hex() == "d31a8d34648e60db" and sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"


def test_aes_256_gcm_as_nist() -> None:
    sealed = aead(AES, bytes(32)).encrypt(bytes(12), bytes(16), None)
    assert sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"


def test_aes_siv_needs_no_nonce() -> None:
    assert siv(bytes(64)).encrypt(b"name", [b"a"]) == siv(bytes(64)).encrypt(b"name", [b"a"])


def test_keys_of_different_purposes_differ() -> None:
    found = {
        derive(bytes(32), salt, purpose) for salt in (b"", b"s") for purpose in ("values", "segment 1", "segment 2")
    }
    assert len(found) == 6 and {len(key) for key in found} == {32}
