"""Certificates for tests of TLS: an authority, and what it signs for servers and clients."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, as PEM files."""

    cert: Path
    key: Path

    @property
    def both(self) -> Path:
        """One file with the key in front of the certificate, as ZooKeeper's server takes them."""
        together = self.cert.with_suffix(".both.pem")
        together.write_bytes(self.key.read_bytes() + self.cert.read_bytes())
        return together


class Authority:
    """Signs certificates; `ca` is the file to trust."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self._name, self._name, key, days=30).add_extension(constraints, critical=True)
        self._key = key
        self.ca = _written(directory / "ca", builder.sign(key, SHA256()), key).cert

    def sign(self, name: str, *, host: str = "127.0.0.1", days: int = 30) -> Certificate:
        """A certificate for a server at `host` or a client called `name`. With `days` below 0 it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            _builder(subject, self._name, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .add_extension(usages, critical=False)
            .sign(self._key, SHA256())
        )
        return _written(self._directory / name, certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    end = datetime.datetime.now(datetime.UTC) + days * _DAY
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 60 * _DAY)
        .not_valid_after(end)
    )


def _written(stem: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Certificate:
    files = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
    files.cert.write_bytes(certificate.public_bytes(Encoding.PEM))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files
