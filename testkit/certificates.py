"""Certificates: a self-signed one for localhost, and those of an authority."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
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

    def issue_to(
        self,
        name: str,
        subject: x509.Name,
        alternatives: Sequence[x509.GeneralName] = (),
        *,
        days: float = 1,
        rsa_bits: int = 0,
        password: bytes = b"",
    ) -> tuple[Path, Path]:
        """Issues a certificate as `issue` does, with all that one can say. Less than 0 `days`: it has expired."""
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        key = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
        self._write(
            cert_file, key_file, key, subject, (), authority=False,
            alternatives=alternatives, days=days, password=password,
        )  # fmt: skip
        return cert_file, key_file

    def tls(self, name: str, more: str = "") -> str:
        """A `tls` block with a certificate of `name` and this authority."""
        cert_file, key_file = self.issue(name)
        return f'tls {{ cert_file: "{cert_file}", key_file: "{key_file}", ca_file: "{self.file}"{more} }}'

    def _write(
        self, cert_file: Path, key_file: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, subject: x509.Name,
        hosts: tuple[str, ...], *, authority: bool, alternatives: Sequence[x509.GeneralName] = (), days: float = 1,
        password: bytes = b"",
    ) -> None:  # fmt: skip
        now = datetime.datetime.now(datetime.UTC)
        named = [*(_san(host) for host in hosts), *alternatives]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=30))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if named:
            builder = builder.add_extension(x509.SubjectAlternativeName(named), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            hidden = serialization.BestAvailableEncryption(password)
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _san(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def subject(*parts: tuple[str, str]) -> x509.Name:
    """A distinguished name of (type or dotted oid, value), in the certificate's order."""
    return x509.Name(
        [x509.NameAttribute(_OIDS.get(kind) or x509.ObjectIdentifier(kind), value) for kind, value in parts]
    )


_OIDS = {
    "CN": NameOID.COMMON_NAME,
    "C": NameOID.COUNTRY_NAME,
    "ST": NameOID.STATE_OR_PROVINCE_NAME,
    "L": NameOID.LOCALITY_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "SERIALNUMBER": NameOID.SERIAL_NUMBER,
    "emailAddress": NameOID.EMAIL_ADDRESS,
}


def pin_of(cert_file: Path) -> str:
    """The fingerprint that `pinned_certs` lists."""
    certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(certificate.public_key().public_bytes(serialization.Encoding.DER, spki)).hexdigest()
