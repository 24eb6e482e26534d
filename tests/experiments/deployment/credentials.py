"""Certificates and keys made on the spot: a SuperLink on the loopback that proves who it is, and nodes that do."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = "127.0.0.1"
PEM = serialization.Encoding.PEM
OPEN_SSH = serialization.PrivateFormat.OpenSSH
PLAIN = serialization.NoEncryption()


@dataclass(frozen=True)
class ServerCertificates:
    """Files of a server's certificate on the loopback alone, which it signs itself, and of its key."""

    server: Path
    server_key: Path

    @classmethod
    def made(cls, folder: Path) -> Self:
        """Write them into a folder; they hold for an hour."""
        key, name = (
            ec.generate_private_key(ec.SECP384R1()),
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
        )
        hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(hosts, critical=False)
            .sign(key, hashes.SHA256())
        )
        files = cls(folder / "server.pem", folder / "server.key")
        files.server.write_bytes(certificate.public_bytes(PEM))
        files.server_key.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))
        return files


@dataclass(frozen=True)
class NodeKey:
    """Files of a SuperNode's key pair, of a curve and in the form that Flower asks for."""

    private: Path
    public: Path

    @classmethod
    def made(cls, folder: Path, name: str) -> Self:
        """Write a new pair into a folder."""
        key = ec.generate_private_key(ec.SECP384R1())
        files = cls(folder / name, folder / f"{name}.pub")
        files.private.write_bytes(key.private_bytes(PEM, OPEN_SSH, PLAIN))
        public = serialization.PublicFormat.OpenSSH
        files.public.write_bytes(key.public_key().public_bytes(serialization.Encoding.OpenSSH, public))
        return files
