"""Certificates and keys for trials on one machine: an authority, one server certificate, and a key for every node.

The private key of the authority is never written, so that it cannot sign other certificates.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.flower.local.private import write_private

VALID = timedelta(days=365)
CLOCK_SKEW = timedelta(hours=1)
"""Time by which the certificates are valid before they are created, since clocks may differ."""


@dataclass(frozen=True)
class Certificates:
    """Certificate files of a server."""

    ca: Path
    """Certificate of the authority, which clients of the server trust."""
    certificate: Path
    """Certificate of the server."""
    key: Path
    """Private key of the server."""

    @classmethod
    def at(cls, folder: Path) -> Certificates:
        """Return the certificates in this folder; they are created if they do not exist."""
        files = cls(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        if not files.key.is_file():
            _make(files)
        return files


@dataclass(frozen=True)
class NodeKey:
    """Key files of a node."""

    private: Path
    """Private key, which stays at the node."""
    public: Path
    """Public key, which is registered with the SuperLink."""

    @classmethod
    def at(cls, path: Path) -> NodeKey:
        """Return the key in this file and its public key next to it; they are created if they do not exist."""
        files = cls(path, path.with_name(f"{path.name}.pub"))
        if not files.private.is_file():
            key = ec.generate_private_key(ec.SECP384R1())
            write_private(files.public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
            write_private(files.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        return files


def _make(files: Certificates) -> None:
    ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name, server_name = _name("Coterie, for this machine only"), _name("localhost")
    ca = (
        _begin(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    hosts = [x509.DNSName("localhost"), *(x509.IPAddress(ip_address(text)) for text in ("127.0.0.1", "::1"))]
    server = (
        _begin(server_name, ca_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_private(files.ca, ca.public_bytes(Encoding.PEM))
    write_private(files.certificate, server.public_bytes(Encoding.PEM))
    # written last: if it exists, the others do
    write_private(files.key, server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
