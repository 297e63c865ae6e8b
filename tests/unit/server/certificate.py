"""Certificates: a self-signed one for localhost, and those of an authority."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate file, key file), valid for a day."""
    authority = Authority(folder, "localhost")
    return authority.file, authority.key_file


class Authority:
    """`file` is its own certificate, which also serves as one for localhost and 127.0.0.1."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.file, self.key_file = folder / "cert.pem", folder / "key.pem"
        self._write(self.file, self.key_file, self._key, self._name, ("localhost", "127.0.0.1"), authority=True)

    def issue(self, name: str, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> tuple[Path, Path]:
        """(certificate file, key file) for the names and addresses `hosts`, valid for a day."""
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        self._write(cert_file, key_file, ec.generate_private_key(ec.SECP256R1()), _named(name), hosts, authority=False)
        return cert_file, key_file

    def tls(self, name: str, more: str = "") -> str:
        """A `tls` block with a certificate of `name` and this authority."""
        cert_file, key_file = self.issue(name)
        return f'tls {{ cert_file: "{cert_file}", key_file: "{key_file}", ca_file: "{self.file}"{more} }}'

    def _write(
        self, cert_file: Path, key_file: Path, key: ec.EllipticCurvePrivateKey, subject: x509.Name,
        hosts: tuple[str, ...], *, authority: bool,
    ) -> None:  # fmt: skip
        now = datetime.datetime.now(datetime.UTC)
        names = x509.SubjectAlternativeName([_san(host) for host in hosts])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _san(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
